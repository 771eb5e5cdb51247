"""This directory is put first on PYTHONPATH by the launcher; `sitecustomize` starts the recorder."""
