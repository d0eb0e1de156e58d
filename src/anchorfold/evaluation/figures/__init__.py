"""The paper's figures, from our own results. One file a figure; `style.py` keeps colours the same in all."""
