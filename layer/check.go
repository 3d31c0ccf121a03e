package layer

import "fmt"

// check panics with the sentence if ok is false. Constructors call it for arguments
// that only a mistake in the program can make wrong.
func check(ok bool, sentence string, args ...any) {
	if !ok {
		panic("layer: " + fmt.Sprintf(sentence, args...))
	}
}
