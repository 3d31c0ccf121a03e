package top

// style is how a terminal shows a text: the parameters of one of its control
// sequences. Colours are for what fails; the rest would do without. Where
// NO_COLOR is set, bubbletea leaves the colours out.
type style string

const (
	plain     style = ""
	heading   style = "1"  // bold
	faint     style = "2"  // what one need not read
	selection style = "7"  // swapped
	some      style = "33" // yellow: some of it fails
	failing   style = "31" // red
)

func (s style) of(t string) string {
	if s == plain || t == "" {
		return t
	}
	return "\x1b[" + string(s) + "m" + t + "\x1b[m"
}

// within returns t in style s inside text of style base.
func (s style) within(t string, base style) string {
	if base == plain {
		return s.of(t)
	}
	return "\x1b[" + string(base) + ";" + string(s) + "m" + t + "\x1b[m\x1b[" + string(base) + "m"
}
