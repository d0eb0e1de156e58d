"""Listening to a model's attention: what can be asked of a layer, how it is read, and which layers to ask."""
