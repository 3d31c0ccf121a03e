package layer

// check panics with the sentence if ok is false. Constructors call it for arguments
// that only a mistake in the program can make wrong.
func check(ok bool, sentence string) {
	if !ok {
		panic("layer: " + sentence)
	}
}
