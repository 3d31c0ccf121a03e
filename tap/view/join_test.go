package view

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap"
)

var noon = time.Unix(1_800_000_000, 0)

func begins(stream uint64) *tap.Event {
	return &tap.Event{
		Direction: tap.Outbound, ID: tap.StreamID{Stream: stream},
		RequestInit: &tap.RequestInit{Method: "GET", Path: fmt.Sprint("/", stream)},
	}
}

func responds(stream uint64, status int) *tap.Event {
	return &tap.Event{ID: tap.StreamID{Stream: stream}, ResponseInit: &tap.ResponseInit{SinceRequestInit: time.Millisecond, Status: status}}
}

func ends(stream uint64) *tap.Event {
	return &tap.Event{ID: tap.StreamID{Stream: stream}, ResponseEnd: &tap.ResponseEnd{SinceRequestInit: 2 * time.Millisecond, Bytes: 5}}
}

// paths are those of the records of b, with how each is.
func paths(b batch) string {
	var s []string
	for _, r := range b.Records {
		how := r.Path
		if r.Open {
			how += " open"
		}
		if r.Failed {
			how += " failed"
		}
		s = append(s, how)
	}
	return strings.Join(s, ", ")
}

func TestJoinerEvents(t *testing.T) {
	var j joiner
	j.add(begins(0), noon)
	j.add(begins(1), noon)
	j.add(responds(1, 200), noon)
	j.add(ends(1), noon)
	require.Equal(t, "/0 open, /1", paths(j.take()))
	require.Empty(t, paths(j.take()), "nothing is told twice")
	j.add(responds(0, 503), noon)
	require.Equal(t, "/0 open", paths(j.take()))
	j.add(ends(0), noon)
	b := j.take()
	require.Equal(t, "/0 failed", paths(b))
	r := b.Records[0]
	require.Equal(t, 503, r.Status)
	require.Equal(t, time.Millisecond, r.ResponseAt)
	require.Equal(t, 2*time.Millisecond, r.Duration)
	require.Equal(t, noon.Add(-2*time.Millisecond).UnixMilli(), r.At)
	require.Zero(t, b.Skipped)
	require.Zero(t, j.open.Len())

	j.add(ends(9), noon)
	require.Empty(t, j.take().Records, "of which nothing is known, nothing is shown")
	j.add(&tap.Event{Dropped: 3}, noon)
	require.EqualValues(t, 3, j.take().Dropped)
}

// A page gets a bounded number of records, failures first.
func TestJoinerBatchLimit(t *testing.T) {
	var j joiner
	for i := range uint64(200) {
		j.add(begins(i), noon)
		status := 200
		if i%20 == 0 {
			status = 500
		}
		j.add(responds(i, status), noon)
		j.add(ends(i), noon)
	}
	b := j.take()
	require.Len(t, b.Records, maxBatch)
	failed := 0
	for i, r := range b.Records {
		if r.Failed {
			failed++
		}
		require.True(t, i == 0 || b.Records[i-1].number < r.number, "in the order of their begin")
	}
	require.Equal(t, 10, failed)
	require.Equal(t, "/199", b.Records[maxBatch-1].Path, "the latest of the others")
	require.EqualValues(t, 200-maxBatch, b.Skipped)
	require.Empty(t, j.take().Records)
}

// Open requests are shown after some time. Requests that are not followed are counted.
func TestJoinerOpenLimit(t *testing.T) {
	var j joiner
	for i := range uint64(maxOpen + 10) {
		j.add(begins(i), noon)
	}
	shown := map[string]bool{}
	for range maxOpen/maxBatch + 1 {
		for _, r := range j.take().Records {
			require.True(t, r.Open)
			shown[r.ID] = true
		}
	}
	require.Len(t, shown, maxOpen)
	require.EqualValues(t, 10, j.take().Skipped)
	for i := range uint64(maxOpen) {
		j.add(ends(i), noon)
	}
	require.Len(t, j.take().Records, maxOpen, "a page is told of the end of all that it shows")
	require.Zero(t, j.open.Len())
}

func TestJoinerWithoutTake(t *testing.T) {
	var j joiner
	for i := range uint64(10 * maxFresh) {
		j.add(begins(i), noon)
		j.add(ends(i), noon)
	}
	require.Len(t, j.fresh, maxFresh)
	b := j.take()
	require.EqualValues(t, 10*maxFresh-maxBatch, b.Skipped)
}

// With a condition on the response all events of a request come at its end.
func TestJoinerHeldRequests(t *testing.T) {
	var j joiner
	for _, e := range []*tap.Event{begins(0), responds(0, 500), {ResponseEnd: &tap.ResponseEnd{SinceRequestInit: 3 * time.Second}}} {
		j.add(e, noon)
	}
	require.Equal(t, noon.Add(-3*time.Second).UnixMilli(), j.take().Records[0].At)
}

// Long requests, and requests with dropped ends, do not block others for longer than maxHeld.
func TestJoinerDropsOldest(t *testing.T) {
	var j joiner
	shown := map[string]string{}
	add := func(i uint64, now time.Time) {
		j.add(begins(i), now)
		for _, r := range j.take().Records {
			shown[r.Path] = fmt.Sprint(r.Open, r.Lost)
		}
	}
	for i := range uint64(maxOpen) {
		add(i, noon.Add(time.Duration(i)*time.Millisecond))
	}
	add(9000, noon.Add(maxHeld-time.Millisecond))
	require.NotContains(t, shown, "/9000", "the oldest request is too young")
	require.Equal(t, "true false", shown["/0"])
	for i := range uint64(3) {
		add(9001+i, noon.Add(maxHeld+time.Millisecond))
	}
	require.Equal(t, "true false", shown["/9001"])
	require.Equal(t, "true false", shown["/9002"])
	require.NotContains(t, shown, "/9003")
	require.Equal(t, "false true", shown["/0"])
	require.Equal(t, "false true", shown["/1"])
	require.Equal(t, "true false", shown["/2"])
	require.EqualValues(t, 2, j.take().Skipped)
	j.add(ends(0), noon)
	require.Empty(t, j.take().Records, "it is not followed")
}

// A batch reports that requests were omitted by the rate of tap.
func TestJoinerReportsLimit(t *testing.T) {
	var j joiner
	for i := range uint64(maxInspected) {
		require.Zero(t, j.take().Limit)
		j.add(begins(i), noon.Add(time.Duration(i)*time.Second/maxInspected))
		j.add(ends(i), noon)
	}
	require.Equal(t, maxInspected, j.take().Limit)
}

func TestRecords(t *testing.T) {
	reset, unavailable, ok := uint32(7), codes.Unavailable, codes.OK
	for _, tt := range []struct {
		name   string
		status int
		end    tap.ResponseEnd
		want   record
	}{
		{"fine", 200, tap.ResponseEnd{}, record{Status: 200}},
		{"the client's fault", 404, tap.ResponseEnd{}, record{Status: 404}},
		{"the server's", 500, tap.ResponseEnd{}, record{Status: 500, Failed: true}},
		{"no response", 0, tap.ResponseEnd{}, record{Failed: true}},
		{"refused", 0, tap.ResponseEnd{ResetCode: &reset}, record{Failed: true, Reset: "REFUSED_STREAM"}},
		{"gRPC", 200, tap.ResponseEnd{GRPCStatus: &ok}, record{Status: 200, GRPC: "OK"}},
		{"gRPC failed", 200, tap.ResponseEnd{GRPCStatus: &unavailable}, record{Status: 200, GRPC: "Unavailable", Failed: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRecord(&tap.Event{RequestInit: &tap.RequestInit{}}, noon)
			if tt.status != 0 {
				require.False(t, r.add(responds(0, tt.status), noon))
			}
			require.True(t, r.add(&tap.Event{ResponseEnd: &tt.end}, noon))
			got := record{Status: r.Status, Failed: r.Failed, Reset: r.Reset, GRPC: r.GRPC}
			require.Equal(t, tt.want, got)
			require.False(t, r.Open)
		})
	}

	r := newRecord(&tap.Event{RequestInit: &tap.RequestInit{}}, noon)
	r.add(&tap.Event{ResponseEnd: &tap.ResponseEnd{Explanation: []layer.Node{{Name: "balance"}}}}, noon)
	require.Equal(t, []*node{{Name: "balance"}}, r.Explanation)
}

func TestConnections(t *testing.T) {
	r := newRecord(&tap.Event{Open: &tap.ConnectionOpen{}}, noon)
	require.Equal(t, "tcp", r.Kind)
	require.True(t, r.add(&tap.Event{Close: &tap.ConnectionClose{SinceOpen: time.Second, Sent: 3, Received: 4, Err: "reset by peer"}}, noon))
	require.Equal(t, "reset by peer", r.Error)
	require.True(t, r.Failed)
	require.EqualValues(t, 3, r.Sent)
	require.EqualValues(t, 4, r.Bytes)
}

func TestRecordFieldLimits(t *testing.T) {
	many := make([]tap.Field, 5*maxFields)
	got := fields(many)
	require.Len(t, got, maxFields+1)
	require.Equal(t, field{cut, "and 400 more"}, got[maxFields])

	long := make([]tap.Field, maxFields)
	for i := range long {
		long[i] = tap.Field{Name: "x", Value: strings.Repeat("v", 10*maxText)}
	}
	total := 0
	for _, f := range fields(long) {
		total += len(f[0]) + len(f[1])
	}
	require.Less(t, total, maxFieldsText+100)
}

// A failed dial has an end and no start.
func TestJoinerFailedDial(t *testing.T) {
	var j joiner
	j.add(&tap.Event{ID: tap.StreamID{Stream: 1}, Close: &tap.ConnectionClose{Err: "connection refused"}}, time.Unix(1, 0))
	got := j.take().Records
	require.Len(t, got, 1)
	require.Equal(t, "tcp", got[0].Kind)
	require.False(t, got[0].Open)
	require.True(t, got[0].Failed)
	require.Equal(t, "connection refused", got[0].Error)
}
