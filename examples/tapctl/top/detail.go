package top

import (
	"fmt"

	"github.com/gotower/gotower/examples/tapctl/text"
)

// detail is the screen that shows all properties of one request.
type detail struct {
	record *record
	first  int // first line on the screen
}

// press scrolls the lines on the screen.
func (d *detail) press(key string, width, height int) {
	if rows, ok := step(key, height-1); ok {
		d.first = max(0, min(d.first+rows, len(d.record.text(width))-height))
	}
}

// lines returns the screen with everything about the request.
func (d *detail) lines(width, height int) drawn {
	r := d.record
	init := r.first.RequestInit
	all := r.text(width)
	// The lower limit comes last, because the text may be shorter than the screen.
	d.first = max(0, min(d.first, len(all)-height))
	help := []string{"esc back", "↑↓ scroll", "? help", "q quit"}
	if more := len(all) - height - d.first; more > 0 {
		help = append(help, text.Plural(uint64(more), "more line")+" below")
	}
	// A request in HTTP/1 may lack the authority and the scheme.
	url := init.Path
	if init.Authority != "" {
		url = init.Authority + url
		if init.Scheme != "" {
			url = init.Scheme + "://" + url
		}
	}
	return drawn{text.Clean(init.Method + " " + url), r.outcome(), help, all[d.first:]}
}

// outcome returns one line with the status, the duration and the response's size. For an open
// request, the line tells only the status.
func (r *record) outcome() string {
	if r.end == nil {
		return r.status()
	}
	return fmt.Sprintf("%s  %s  %s", r.status(), text.Exact(r.end.SinceRequestInit), text.Bytes(r.end.Bytes))
}

// text returns everything that is known about the request, as lines of at most width columns.
func (r *record) text(width int) []string {
	p := &page{width: width}
	e := r.first
	p.put("from", text.Clean(join(addr(e.Source.IsValid(), e.Source.String()), labels(e.SourceLabels))))
	p.put("to", text.Clean(join(addr(e.Destination.IsValid(), e.Destination.String()), labels(e.DestinationLabels))))
	if len(e.RouteLabels) > 0 {
		p.put("route", text.Clean(labels(e.RouteLabels)))
	}
	p.put("seen by", fmt.Sprintf("%s  %v  id %d:%d", text.Clean(r.process), r.direction, r.first.ID.Base, r.first.ID.Stream))
	p.blank()
	p.put("request", r.at.Format("15:04:05.000"))
	p.fields(e.RequestInit.Headers)
	if r.response != nil {
		p.put("response", fmt.Sprintf("%d  after %s", r.response.Status, text.Exact(r.response.SinceRequestInit)))
		p.fields(r.response.Headers)
	}
	// Without an end, nothing more is known.
	if r.end == nil {
		p.put("open", "it has not ended yet")
		return p.lines
	}
	p.ending(r)
	return p.lines
}
