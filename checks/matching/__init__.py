"""Which known problem a finding may be: a signature for "the same again", and suggestions that say why.

`checks.matching.signature` reads what a failing verdict says, whatever the seed, the layer and the model's size were.
`checks.matching.match` orders problems for a finding: decided ones with its signature, affected releases and
components, then words. Nothing here knows which fault belongs to which problem.
"""
