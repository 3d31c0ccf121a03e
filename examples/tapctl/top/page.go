package top

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
)

// page collects the lines of a screen, each at most width columns wide.
type page struct {
	width int
	lines []string
}

// blank appends an empty line.
func (p *page) blank() { p.lines = append(p.lines, "") }

// put appends a name and its value. A long value is wrapped into several lines.
func (p *page) put(name, value string) {
	// names is the width of the column with names.
	const names = 11
	head := text.Pad(name, names, false) // spaces at the end
	space := strings.Repeat(" ", names)
	// 20 columns are the least that is readable, even if the screen is narrower.
	for i, l := range wrap(value, max(20, p.width-names)) {
		// The name is only shown in the first line.
		if i > 0 {
			head = space
		}
		p.lines = append(p.lines, strings.TrimRight(text.Fit(head+l, p.width), " "))
	}
}

// fields appends header fields, one on each line, shortened to the width.
func (p *page) fields(fields []tap.Field) {
	const names = 24
	for _, f := range fields {
		line := "  " + text.Pad(text.Clean(f.Name), names, false) + " " + text.Clean(f.Value) // spaces after the name
		p.lines = append(p.lines, text.Fit(line, p.width))
	}
}

// node appends n, a node in a request's explanation, then its children, one level deeper, and
// last the service that n wraps, at n's level. depth is the level.
func (p *page) node(depth int, n layer.Node) {
	// The attributes are shown in their order.
	parts := make([]string, 0, len(n.State))
	for _, a := range n.State {
		value := fmt.Sprint(a.Value)
		// A duration with all digits would be hard to read.
		if d, ok := a.Value.(time.Duration); ok {
			value = text.Exact(d)
		}
		parts = append(parts, a.Key+"="+value)
	}
	indent := strings.Repeat("  ", depth)
	head := indent + text.Pad(text.Clean(n.Name), 10, false) + " " // spaces after the name
	for _, l := range wrap(text.Clean(strings.Join(parts, " ")), max(20, p.width-text.Width(head))) {
		p.lines = append(p.lines, strings.TrimRight(text.Fit(head+l, p.width), " "))
		head = strings.Repeat(" ", text.Width(head))
	}
	for _, c := range n.Children {
		p.node(depth+1, c)
	}
	if n.Next != nil {
		p.node(depth, *n.Next)
	}
}

// ending appends how the request ended, and why it was routed the way it was.
func (p *page) ending(r *record) {
	end := r.end
	value := fmt.Sprintf("%s after %s", text.Bytes(end.Bytes), text.Exact(end.SinceRequestInit))
	if end.SinceResponseInit != nil {
		value += fmt.Sprintf(", %s of that for the body", text.Exact(*end.SinceResponseInit))
	}
	if end.GRPCStatus != nil {
		value += fmt.Sprintf(", grpc-status %v", *end.GRPCStatus)
	}
	if end.ResetCode != nil {
		value += ", reset " + end.Reset()
	}
	p.put("end", value)
	// The line of a failed request is red.
	if r.failed() {
		last := len(p.lines) - 1
		p.lines[last] = failing.of(p.lines[last])
	}
	p.fields(end.Trailers)
	p.blank()
	if len(end.Explanation) == 0 {
		p.put("why there", "unknown: the process has no tap.Explain above the tap, or is linkerd's proxy")
		return
	}
	p.put("why there", "")
	for _, n := range end.Explanation {
		p.node(1, n)
	}
}

// addr returns s, or "?" for an address that is not known.
func addr(isKnown bool, s string) string {
	if !isKnown {
		return "?"
	}
	return s
}

// labels returns l as key=value, sorted by key.
func labels(l map[string]string) string {
	parts := make([]string, 0, len(l))
	for _, k := range slices.Sorted(maps.Keys(l)) {
		parts = append(parts, k+"="+l[k])
	}
	return strings.Join(parts, " ")
}
