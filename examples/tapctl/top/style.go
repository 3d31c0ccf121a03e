package top

// style is the parameters of a terminal control sequence. Colors mark failures only. If
// NO_COLOR is set, bubbletea removes the colors.
type style string

const (
	plain     style = ""
	heading   style = "1"  // bold
	faint     style = "2"  // less important text
	selection style = "7"  // inverse colors
	some      style = "33" // yellow: some requests fail
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
