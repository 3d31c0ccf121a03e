package settings

import (
	"fmt"
	"io"
	"strings"
)

// Help writes each variable to w, with its default and description.
func Help(w io.Writer) error {
	var b strings.Builder
	// The settings are only needed for the list of variables.
	for _, g := range variables(new(Settings)) {
		fmt.Fprintf(&b, "%s\n", g.title)
		for i := range g.variables {
			g.variables[i].describe(&b)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describe writes v's line in the help.
func (v *variable) describe(b *strings.Builder) {
	// Variables with linkerd's prefix are listed without it, as the help's introduction says.
	name := v.name
	if v.prefix != "" {
		name = v.full(name)
	}
	fmt.Fprintf(b, "  %-55s %s", name, v.help)
	if v.def != "" {
		fmt.Fprintf(b, " (%s)", v.def)
	}
	if v.oldNames != nil {
		fmt.Fprintf(b, " [formerly %s]", strings.Join(v.oldNames, ", "))
	}
	b.WriteByte('\n')
}
