package top

// style is the parameter of a terminal control sequence for colors and fonts. Colors mark
// only failures. bubbletea removes the colors if NO_COLOR is set.
type style string

const (
	plain     style = ""
	heading   style = "1"  // bold
	faint     style = "2"  // less important text
	selection style = "7"  // inverse colors
	some      style = "33" // yellow: some requests fail
	failing   style = "31" // red
)

// of returns t in the style s. An empty text needs no control sequences.
func (s style) of(t string) string {
	if s == plain || t == "" {
		return t
	}
	return "\x1b[" + string(s) + "m" + t + "\x1b[m"
}

// within returns text in the style s, for use inside a longer text in the style base. After text, the
// control sequences switch back to base.
func (s style) within(text string, base style) string {
	if base == plain {
		return s.of(text)
	}
	return "\x1b[" + string(base) + ";" + string(s) + "m" + text + "\x1b[m\x1b[" + string(base) + "m"
}
