package simulation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// style has the colours twice: a browser that prefers dark takes the second.
const style = `<style>
  text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1f2937; }
  .back { fill: #ffffff; }
  .title { font-weight: 600; font-size: 13px; }
  .note, .tick { fill: #6b7280; font-size: 11px; }
  .bold { font-weight: 600; }
  .poor { fill: #b91c1c; }
  .grid { stroke: #e5e7eb; stroke-width: 1; }
  .mark { stroke: #6b7280; stroke-width: 1; stroke-dasharray: 3 3; }
  .line { fill: none !important; stroke-width: 1.6; }
  .end { text-anchor: end; }
  .mid { text-anchor: middle; }
  .ours { fill: #1d4ed8; stroke: #1d4ed8; } .peer { fill: #64748b; stroke: #64748b; }
  .c1 { fill: #b45309; stroke: #b45309; } .c2 { fill: #047857; stroke: #047857; }
  .c3 { fill: #7e22ce; stroke: #7e22ce; } .c4 { fill: #be185d; stroke: #be185d; }
  text { stroke: none !important; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb; }
    .back { fill: #0d1117; }
    .note, .tick { fill: #9ca3af; }
    .poor { fill: #ff8080; }
    .grid { stroke: #30363d; }
    .mark { stroke: #9ca3af; }
    .ours { fill: #79b8ff; stroke: #79b8ff; } .peer { fill: #94a3b8; stroke: #94a3b8; }
    .c1 { fill: #f5b041; stroke: #f5b041; } .c2 { fill: #4ade80; stroke: #4ade80; }
    .c3 { fill: #c99bff; stroke: #c99bff; } .c4 { fill: #ff8ac0; stroke: #ff8ac0; }
  }
</style>
`

// picture is an SVG that is being written.
type picture struct{ strings.Builder }

func (p *picture) text(x, y float64, class, s string) {
	s = strings.NewReplacer("&", "&amp;", "<", "&lt;").Replace(s)
	fmt.Fprintf(p, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, y, class, s)
}

func (p *picture) line(x1, y1, x2, y2 float64, class string) {
	fmt.Fprintf(p, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x1, y1, x2, y2, class)
}

const (
	plotWidth  = 1000.0
	rowHeight  = 17.0
	labelWidth = 195.0
	cellWidth  = 260.0
)

// plot is simulation.svg: above, p99 and the good share of every policy in the
// most telling scenarios; below, the course of a bad endpoint's share.
func plot(outcomes []outcome) string {
	find := func(name string) *outcome {
		i := slices.IndexFunc(outcomes, func(o outcome) bool { return o.sc.name == name })
		return &outcomes[max(i, 0)]
	}
	p := &picture{}
	y := 30.0
	rows := float64(len(contenders()))*rowHeight + 75
	for _, names := range [][]string{
		{"one slow", "one fails", "unequal, 85 %"}, {"unequal, 50 clients", "cancellations, one slow", "long streams"},
	} {
		p.labels(y)
		for i, name := range names {
			p.dots(labelWidth+10+float64(i)*(cellWidth+5), y, find(name))
		}
		y += rows
	}
	p.courses(20, y, find("healing"), 20*sec, "healed")
	p.courses(20+plotWidth/2, y, find("fast failure"), 25*sec, "healed")
	y += 270
	head := fmt.Sprintf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\">\n",
		plotWidth, y, plotWidth, y)
	return head + "<title>Balancers compared</title>\n" + style +
		"<rect class=\"back\" width=\"100%\" height=\"100%\"/>\n" + p.String() + "</svg>\n"
}

func (p *picture) labels(y float64) {
	for i, c := range contenders() {
		class := "end"
		if c.ours {
			class += " bold"
		}
		p.text(labelWidth, y+45+float64(i)*rowHeight, class, c.name)
	}
}

// dots draws p99 on a scale of powers of ten, and writes the good share.
func (p *picture) dots(x, y float64, o *outcome) {
	const width, least, most = cellWidth - 75, 10.0, 100_000.0
	place := func(v float64) float64 {
		return x + width*math.Log10(min(max(v, least), most)/least)/math.Log10(most/least)
	}
	height := float64(len(o.results)) * rowHeight
	p.text(x, y, "title", o.sc.name)
	p.text(x, y+15, "note", "p99")
	p.text(x+cellWidth-20, y+15, "note end", "good")
	for v, unit := least, []string{"10 ms", "0.1 s", "1 s", "10 s", ""}; v <= most; v, unit = v*10, unit[1:] {
		p.line(place(v), y+28, place(v), y+30+height, "grid")
		p.text(place(v), y+43+height, "tick mid", unit[0])
	}
	for i, c := range contenders() {
		r, at, color := &o.results[i], y+41+float64(i)*rowHeight, "peer"
		if c.ours {
			color = "ours"
		}
		fmt.Fprintf(p, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" class=\"%s\"/>\n", place(r.p99), at, color)
		class := "end"
		if r.good < 99 {
			class += " poor"
		}
		p.text(x+cellWidth-20, at+4, class, fmt.Sprintf("%.2f %%", r.good))
	}
}

// courses draws the part of all requests so far that went to the bad one.
func (p *picture) courses(x, y float64, o *outcome, healed interface{ Seconds() float64 }, mark string) {
	const width, height = plotWidth/2 - 205, 190.0
	top, seconds := 0.0, o.sc.length.Seconds()
	lines := []struct{ name, color string }{
		{ourDefault, "ours"},
		{"linkerd", "c1"},
		{"kratos", "c2"},
		{"go-zero", "c3"},
		{"least loaded, scan of all", "c4"},
		{"round robin", "peer"},
	}
	for _, l := range lines {
		top = max(top, slices.Max(o.of(l.name).course))
	}
	top = 5 * math.Ceil(100*top/5)
	across := func(s float64) float64 { return x + 25 + width*s/seconds }
	up := func(percent float64) float64 { return y + 30 + height*(1-percent/top) }
	p.text(x, y, "title", o.sc.name+": share of the bad one so far")
	for v := 0.0; v <= top; v += 5 {
		p.line(across(0), up(v), across(seconds), up(v), "grid")
		p.text(across(0)-4, up(v)+4, "tick end", fmt.Sprintf("%.0f %%", v))
	}
	for s := 0.0; s <= seconds; s += 10 {
		p.text(across(s), up(0)+16, "tick mid", fmt.Sprintf("%.0f s", s))
	}
	p.line(across(healed.Seconds()), up(top), across(healed.Seconds()), up(0), "mark")
	p.text(across(healed.Seconds())+4, up(top)-4, "tick", mark)
	var ends []label
	for _, l := range lines {
		course, points := o.of(l.name).course, make([]string, 0, 200)
		for i, share := range course {
			points = append(points, fmt.Sprintf("%.1f,%.1f", across(seconds*float64(i+1)/float64(len(course))), up(100*share)))
		}
		fmt.Fprintf(p, "<polyline class=\"line %s\" points=\"%s\"/>\n", l.color, strings.Join(points, " "))
		ends = append(ends, label{l.name, l.color, up(100*course[len(course)-1]) + 4})
	}
	p.ends(across(seconds)+6, ends)
}

// label is what stands at the end of a line.
type label struct {
	text, color string
	y           float64
}

// ends writes labels one below the other, where they belong or a little lower.
func (p *picture) ends(x float64, labels []label) {
	slices.SortFunc(labels, func(a, b label) int { return cmp.Compare(a.y, b.y) })
	for i := len(labels) - 2; i >= 0; i-- {
		labels[i].y = min(labels[i].y, labels[i+1].y-14)
	}
	for _, l := range labels {
		fmt.Fprintf(p, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">%s</text>\n", x, l.y, l.color, l.text)
	}
}
