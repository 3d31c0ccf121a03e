// Package option applies functional options.
package option

// Apply calls all functions in opts with dst, in their order. It ignores nil options.
func Apply[T any, O ~func(*T)](dst *T, opts []O) {
	for _, opt := range opts {
		if opt != nil {
			opt(dst)
		}
	}
}
