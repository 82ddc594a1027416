// An object library needs a source; this one is for the headers that are precompiled beside it.
