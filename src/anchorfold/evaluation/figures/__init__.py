"""The paper's figures, drawn from measured results: one module per figure, shared styles in `style.py`."""
