"""AnchorFold inside other libraries, one file each; each needs the library that it is named after."""
