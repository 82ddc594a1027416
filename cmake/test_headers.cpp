// The precompiled header of tests wants a source to be made with.
