package top

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gotower/gotower/examples/tapctl/text"
	"github.com/gotower/gotower/tap"
	"github.com/gotower/gotower/tap/tappb"
)

// maxRequests is how many requests a row's list keeps. When the list is full, a new request
// replaces the oldest request.
const maxRequests = 500

// requests is the screen that lists a row's live requests.
type requests struct {
	number int // identifies this list in messages
	row    rowOf
	stop   func()

	refused []error // rejections of processes

	all      []*record // the oldest first
	open     tap.Joiner[*record]
	count    uint64 // number of all requests so far
	dropped  uint64
	failures bool      // show failed requests only
	frozen   []*record // what is shown while the list is paused
	paused   bool      // new requests are counted but not shown
	cursor   cursor
	left     int // columns that are scrolled out to the left
}

// record is a request with the events that have arrived so far.
type record struct {
	process   string // that reported the events
	at        time.Time
	key       string
	direction tap.Direction
	first     tap.Event // event with RequestInit
	response  *tap.ResponseInit
	end       *tap.ResponseEnd
}

// newRequests returns an empty list for the requests of row. anySource tells that row is a sum over sources.
func newRequests(number int, row *tappb.Row, anySource bool) *requests {
	return &requests{number: number, row: rowOf{row, anySource}, open: tap.Joiner[*record]{Limit: maxRequests}}
}

// PerProcess returns the rate of requests per second to ask of one process: an equal share of
// maxRPS, but at least 1.
func PerProcess(maxRPS, processes int) uint32 {
	return uint32(min(max(maxRPS/max(processes, 1), 1), math.MaxInt32))
}

// ask returns the message that tapctl sends to each process to watch the row's requests.
func (q *requests) ask(c *Config) *tappb.WatchRequest {
	return &tappb.WatchRequest{
		Match: q.row.match(c.Request.GetMatch()), Headers: c.Request.GetHeaders(), Fields: true, Explain: true,
	}
}

// take adds the events of a message.
func (q *requests) take(msg seenMsg) {
	q.dropped += uint64(msg.lost)
	for _, s := range msg.seen {
		q.add(s.ProcessEvent, s.at)
	}
}

// add adds one event, which arrived at the time now. Events of requests that are not in the list are ignored.
func (q *requests) add(s tap.ProcessEvent, now time.Time) {
	e := s.Event
	q.dropped += e.Dropped
	r, ok := q.open.Join(s.From, &e, func() (*record, bool) { return q.begin(s, now) })
	switch {
	case !ok:
	case e.ResponseInit != nil:
		r.response = e.ResponseInit
	case e.ResponseEnd != nil:
		r.end = e.ResponseEnd
	}
}

// begin adds a record for the first event of a request. It returns false if the request does not belong
// to the row.
func (q *requests) begin(s tap.ProcessEvent, now time.Time) (*record, bool) {
	e := s.Event
	if e.RequestInit == nil || !q.row.has(s.From, e) {
		return nil, false
	}
	q.count++
	r := &record{process: s.From, at: now, key: strconv.FormatUint(q.count, 10), direction: e.Direction, first: e}
	q.all = append(q.all, r)
	if len(q.all) > maxRequests {
		q.all = q.all[1:]
	}
	return r, true
}

// visible returns the requests to show, newest first. While the list is paused, these are the
// ones that were there when the pause began. If the user selected failures only, others are left
// out.
func (q *requests) visible() []*record {
	all := q.all
	if q.paused {
		all = q.frozen
	}
	var out []*record
	for _, r := range slices.Backward(all) {
		if !q.failures || r.failed() {
			out = append(out, r)
		}
	}
	return out
}

// recordKeys returns the keys of the requests, for the cursor.
func recordKeys(all []*record) []string {
	keys := make([]string, len(all))
	for i, r := range all {
		keys[i] = r.key
	}
	return keys
}

// selected returns the request under the cursor, or nil if there is none. height includes the titles.
func (q *requests) selected(height int) *record {
	all := q.visible()
	q.cursor.place(recordKeys(all), height-1)
	if len(all) == 0 {
		return nil
	}
	return all[q.cursor.at]
}

// press handles a key. height is how many lines the list takes, including its titles.
func (q *requests) press(key string, height int) {
	if rows, ok := step(key, height-1); ok {
		q.cursor.move(rows, recordKeys(q.visible()))
		return
	}
	if columns, ok := sideways(key); ok {
		q.left = max(0, q.left+columns) // lines sets the upper limit
		return
	}
	switch key {
	case "p", "space":
		q.paused = !q.paused
		// The copy is not used after the pause, but costs little.
		q.frozen = slices.Clone(q.all)
	case "f":
		q.failures = !q.failures
	}
}

// lines returns the screen with the list.
func (q *requests) lines(width, height int) drawn {
	all := q.visible()
	q.cursor.place(recordKeys(all), height-1)
	g := q.grid(all)
	// The limit depends on the content, so it is applied here and not in press.
	q.left = max(0, min(q.left, g.span(width)-width))
	body := g.lines(window{width: width, height: height, left: q.left, first: q.cursor.first, selected: q.cursor.at})
	if len(all) == 0 {
		body = append(body, "", "  "+q.nothing())
	}
	help := []string{"esc back", "↑↓ select", "enter look at it", "f failures only", "p pause", "? help", "q quit"}
	return drawn{q.row.title(), q.counts(len(all)), help, body}
}

// grid returns a grid with a line for each request in all. It omits the columns Method and Path
// if all requests in the row share them.
func (q *requests) grid(all []*record) *grid {
	g := &grid{columns: []gridColumn{{title: "Time", width: 12}, {title: "Source", least: 10}, {title: "Destination", least: 11}}}
	paths := !q.row.onePath()
	if paths {
		g.columns = append(g.columns, gridColumn{title: "Method", least: 6}, gridColumn{title: "Path", least: 12})
	}
	g.columns = append(g.columns, gridColumn{title: "Status", width: 12, least: 12},
		gridColumn{title: "Took", right: true, width: 8}, gridColumn{title: "Size", right: true, width: 7})
	for _, r := range all {
		g.cells = append(g.cells, r.cells(paths))
	}
	return g
}

// nothing explains an empty list.
func (q *requests) nothing() string {
	if q.failures && len(q.all) > 0 {
		return "None of these failed. f shows all again."
	}
	return "Waiting for the next request of this row …"
}

// counts returns the second line on the screen: how many requests there were, and what is shown of them.
func (q *requests) counts(visible int) string {
	parts := []string{text.Plural(q.count, "request")}
	if q.count > maxRequests {
		parts[0] += fmt.Sprintf(", the last %d", maxRequests)
	}
	// visible only counts failures then.
	if q.failures {
		parts = append(parts, fmt.Sprintf("%d failed", visible))
	}
	if q.dropped > 0 {
		parts = append(parts, text.Plural(q.dropped, "event")+" dropped: more than could be shown")
	}
	line := strings.Join(parts, "  ")
	if q.paused {
		line = "PAUSED  " + line
	}
	return line
}

// cells returns the cells of the request's line. path tells whether method and path have columns.
func (r *record) cells(path bool) []cell {
	init := r.first.RequestInit
	took := ""
	size := ""
	if r.end != nil {
		took = text.Exact(r.end.SinceRequestInit)
		size = text.Bytes(r.end.Bytes)
	}
	base := plain
	// An open request is faint, and a failed one is red.
	switch {
	case r.end == nil:
		base = faint
	case r.failed():
		base = failing
	}
	cells := []cell{
		{text: r.at.Format("15:04:05.000")},
		{text: text.Clean(peer(r.first.SourceLabels, r.first.Source))},
		{text: text.Clean(peer(r.first.DestinationLabels, r.first.Destination))},
	}
	if path {
		cells = append(cells, cell{text: text.Clean(init.Method)}, cell{text: text.Clean(init.Path)})
	}
	return append(cells, cell{text: r.status(), style: base}, cell{text: took}, cell{text: size})
}
