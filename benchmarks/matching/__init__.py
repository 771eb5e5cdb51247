"""How often the matcher suggests the problem that an injected fault is modelled on."""
