package view

import (
	"encoding/json"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

// odd is a value with a method String that panics.
type odd struct{}

func (*odd) String() string { panic("nil") }

func TestNodeJSON(t *testing.T) {
	var nothing *odd
	n := layer.Node{Name: "n", State: layer.State{
		{Key: "int", Value: 7}, {Key: "float", Value: 1.5}, {Key: "bool", Value: true}, {Key: "text", Value: "a\xffb"},
		{Key: "nan", Value: math.NaN()}, {Key: "inf", Value: math.Inf(1)}, {Key: "duration", Value: 1500 * time.Millisecond},
		{Key: "labels", Value: map[string]string{"b": "2", "a": "1"}}, {Key: "addr", Value: netip.MustParseAddrPort("127.0.0.1:80")},
		{Key: "nil", Value: nil}, {Key: "func", Value: (func())(nil)}, {Key: "odd", Value: nothing},
		{Key: "long", Value: strings.Repeat("é", 1000)},
	}}
	b, err := json.Marshal(describe(func() layer.Node { return n }))
	require.NoError(t, err)
	var d node
	require.NoError(t, json.Unmarshal(b, &d))
	got := map[any]any{}
	for _, a := range d.State {
		got[a[0]] = a[1]
	}
	require.Equal(t, "1.5s", got["duration"])
	require.Equal(t, "a=1 b=2", got["labels"])
	require.Equal(t, "127.0.0.1:80", got["addr"])
	require.Equal(t, "NaN", got["nan"])
	require.InDelta(t, 7, got["int"], 0)
	require.Equal(t, true, got["bool"])
	require.Equal(t, strings.Repeat("é", maxText/2)+cut, got["long"])
}

// Invisible marks could reverse a path, or hide a part of it.
func TestTextPrintable(t *testing.T) {
	for given, want := range map[string]string{
		"/books/7 é 😀": "/books/7 é 😀", "a\u202eb\u2066c\u200bd\x00e": "a\ufffdb\ufffdc\ufffdd\ufffde",
		"a\r\nb\tc\u2028d": "a  b c d", "a\xffb": "a\ufffdb",
	} {
		require.Equal(t, want, text(given))
	}
	e := begins(1)
	e.SourceLabels = map[string]string{"pod": "web\u202e"}
	require.Equal(t, map[string]string{"pod": "web\ufffd"}, newRecord(e, noon).SourceLabels)
}

func TestNodeLimits(t *testing.T) {
	wide := layer.Node{Name: "wide", Children: make([]layer.Node, 3*maxNodes)}
	count := 0
	var walk func(n *node)
	walk = func(n *node) {
		for ; n != nil; n = n.Next {
			count++
			for _, c := range n.Children {
				walk(c)
			}
		}
	}
	walk(describe(func() layer.Node { return wide }))
	require.Equal(t, maxNodes+1, count, "one more says that there are more")

	deep := layer.Node{Name: "leaf"}
	for range 3 * maxDepth {
		deep = layer.Node{Name: "deep", Next: &layer.Node{Children: []layer.Node{deep}}}
	}
	count = 0
	walk(describe(func() layer.Node { return deep }))
	require.LessOrEqual(t, count, maxDepth+3)
}

func TestBars(t *testing.T) {
	var l latency
	require.Empty(t, l.bars().Counts)
	l.add(10 * time.Millisecond)
	l.endInterval(2)
	l.add(40 * time.Millisecond)
	l.endInterval(2)
	b := l.bars()
	require.Equal(t, []uint64{1, 0, 0, 0, 1}, b.Counts, "four times as long is four bars on")
	require.EqualValues(t, 4, b.Of, "not all were looked at")
	require.LessOrEqual(t, b.From, float64(10*time.Millisecond))
	require.Greater(t, b.From*math.Sqrt2, float64(10*time.Millisecond))
	for range window - 1 {
		l.endInterval(2)
	}
	require.Equal(t, []uint64{1}, l.bars().Counts, "what is a minute ago is forgotten")
}

func TestPoints(t *testing.T) {
	r := &run{}
	at := time.Unix(1000, 0)
	rows := func(counts ...uint64) (all []*tappb.Row) {
		for i, n := range counts {
			all = append(all, &tappb.Row{Path: string(rune('a' + i)), Count: 10 * n, Successes: 9 * n})
		}
		return all
	}
	last := func() point { return r.points[len(r.points)-1] }
	for i := range uint64(3 * pointsKept) {
		r.addPoint(rows(i), at.Add(time.Duration(i)*2*time.Second))
	}
	require.Len(t, r.points, pointsKept)
	require.InDelta(t, 5, r.points[0].Rate, 1e-9)
	require.InDelta(t, 0.5, r.points[0].Failures, 1e-9)
	at = at.Add(time.Hour)
	r.addPoint(rows(3*pointsKept, 1), at)
	r.addPoint(rows(0, 2)[1:], at.Add(time.Second))
	require.InDelta(t, 10, last().Rate, 1e-9, "a removed row does not hide other requests")
	require.InDelta(t, 1, last().Failures, 1e-9)
	r.addPoint(rows(0, 1)[1:], at.Add(2*time.Second))
	require.InDelta(t, 10, last().Rate, 1e-9, "a row that was removed counts from 0 again")
	r.addPoint(nil, at.Add(3*time.Second))
	require.Zero(t, last().Rate, "no negative rate")
}
