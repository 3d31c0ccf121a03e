// Package top adds up tap events into the table that `tapctl top` and the demo
// show: a row for each source, destination, method and path.
package top

import (
	"cmp"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/tap"
)

// Row is what was seen of the requests that share its first four fields.
type Row struct {
	Source      string // the "pod" label of the client, or its IP
	Destination string // the "pod" label of the endpoint, or its IP
	Method      string
	Path        string

	Count             int
	Successes         int
	Best, Worst, Last time.Duration // from the request to the end of the response
}

// SuccessRate is from 0 to 1.
func (r Row) SuccessRate() float64 { return float64(r.Successes) / float64(max(r.Count, 1)) }

// Table adds up events. It is safe for concurrent use. The zero value is
// ready.
type Table struct {
	mu   sync.Mutex
	rows map[key]*Row
	open map[stream]*exchange
}

type key struct{ source, destination, method, path string }

// stream tells requests apart: each process counts for itself.
type stream struct {
	from string
	id   tap.StreamID
}

// exchange is a request whose end was not seen yet.
type exchange struct {
	key    key
	status int
}

// maxOpen bounds what is kept of requests whose end never comes, because its
// event was dropped.
const maxOpen = 100_000

// Add takes one event that came from the process called from.
func (t *Table) Add(from string, e tap.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows == nil {
		t.rows, t.open = map[key]*Row{}, map[stream]*exchange{}
	}
	id := stream{from, e.ID}
	switch {
	case e.RequestInit != nil:
		if len(t.open) >= maxOpen {
			for some := range t.open {
				delete(t.open, some)
				break
			}
		}
		t.open[id] = &exchange{key: key{
			source:      name(e.SourceLabels, e.Source),
			destination: name(e.DestinationLabels, e.Destination),
			method:      e.RequestInit.Method,
			path:        e.RequestInit.Path,
		}}
	case e.ResponseInit != nil:
		if x := t.open[id]; x != nil {
			x.status = e.ResponseInit.Status
		}
	case e.ResponseEnd != nil:
		if x := t.open[id]; x != nil {
			delete(t.open, id)
			t.end(x, e.ResponseEnd)
		}
	}
}

func (t *Table) end(x *exchange, e *tap.ResponseEnd) {
	if x.status == 0 && e.ResetCode != nil && *e.ResetCode == refusedStream {
		return // it was not sent there, and is counted where it was
	}
	r := t.rows[x.key]
	if r == nil {
		r = &Row{Source: x.key.source, Destination: x.key.destination, Method: x.key.method, Path: x.key.path, Best: e.SinceRequestInit}
		t.rows[x.key] = r
	}
	r.Count++
	r.Last = e.SinceRequestInit
	r.Best, r.Worst = min(r.Best, r.Last), max(r.Worst, r.Last)
	if succeeded(x.status, e) {
		r.Successes++
	}
}

// refusedStream is HTTP/2's code for a request that was not processed.
const refusedStream = 7

func succeeded(status int, e *tap.ResponseEnd) bool {
	if e.ResetCode != nil || status == 0 || status >= http.StatusInternalServerError {
		return false
	}
	if e.GRPCStatus == nil {
		return true
	}
	switch *e.GRPCStatus {
	case codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.Unavailable, codes.DataLoss:
		return false
	default:
		return true
	}
}

func name(labels map[string]string, addr netip.AddrPort) string {
	switch {
	case labels["pod"] != "":
		return labels["pod"]
	case addr.IsValid():
		return addr.Addr().String()
	}
	return "?"
}

// Rows returns the rows, the most frequent first.
func (t *Table) Rows() []Row {
	t.mu.Lock()
	defer t.mu.Unlock()
	rows := make([]Row, 0, len(t.rows))
	for _, r := range t.rows {
		rows = append(rows, *r)
	}
	slices.SortFunc(rows, func(a, b Row) int {
		return cmp.Or(
			cmp.Compare(b.Count, a.Count), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Destination, b.Destination),
			cmp.Compare(a.Path, b.Path), cmp.Compare(a.Method, b.Method))
	})
	return rows
}
