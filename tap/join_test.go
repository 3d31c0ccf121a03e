package tap_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/tap"
)

// joinedPath is the value that the tests keep for a request.
type joinedPath struct{ path string }

// join passes an event to j, and keeps the path of a first event.
func join(j *tap.Joiner[*joinedPath], process string, e tap.Event) (*joinedPath, bool) {
	return j.Join(process, &e, func() (*joinedPath, bool) {
		if e.RequestInit == nil {
			return &joinedPath{path: "connection"}, true
		}
		return &joinedPath{path: e.RequestInit.Path}, e.RequestInit.Path != "/ignored"
	})
}

func requestEvent(stream uint64, path string) tap.Event {
	return tap.Event{ID: tap.StreamID{Stream: stream}, RequestInit: &tap.RequestInit{Path: path}}
}

func responseEvent(stream uint64) tap.Event {
	return tap.Event{ID: tap.StreamID{Stream: stream}, ResponseInit: &tap.ResponseInit{Status: 200}}
}

func endEvent(stream uint64) tap.Event {
	return tap.Event{ID: tap.StreamID{Stream: stream}, ResponseEnd: &tap.ResponseEnd{}}
}

func TestJoinerKeepsValueUntilEnd(t *testing.T) {
	var j tap.Joiner[*joinedPath]
	first, ok := join(&j, "a", requestEvent(1, "/a"))
	require.True(t, ok)
	other, ok := join(&j, "b", requestEvent(1, "/b"))
	require.True(t, ok)
	require.Equal(t, 2, j.Len())
	for _, event := range []tap.Event{responseEvent(1), endEvent(1)} {
		got, ok := join(&j, "a", event)
		require.True(t, ok)
		require.Same(t, first, got)
	}
	_, ok = join(&j, "a", endEvent(1))
	require.False(t, ok, "it has ended")
	got, ok := join(&j, "b", responseEvent(1))
	require.True(t, ok)
	require.Same(t, other, got, "the same number in another process is another request")
	require.Equal(t, 1, j.Len())
}

func TestJoinerLeavesOut(t *testing.T) {
	var j tap.Joiner[*joinedPath]
	for _, event := range []tap.Event{requestEvent(1, "/ignored"), responseEvent(1), endEvent(1), responseEvent(2), {Dropped: 3}} {
		_, ok := join(&j, "", event)
		require.False(t, ok, "%+v", event)
	}
	require.Zero(t, j.Len())
}

func TestJoinerConnections(t *testing.T) {
	var j tap.Joiner[*joinedPath]
	opened, ok := join(&j, "", tap.Event{Open: &tap.ConnectionOpen{}})
	require.True(t, ok)
	closed, ok := join(&j, "", tap.Event{Close: &tap.ConnectionClose{}})
	require.True(t, ok)
	require.Same(t, opened, closed)
	failed, ok := join(&j, "", tap.Event{Close: &tap.ConnectionClose{Err: "connection refused"}})
	require.True(t, ok, "a connection that could not be opened has no other event")
	require.NotSame(t, opened, failed)
	require.Zero(t, j.Len())
}

func TestJoinerRestartedProcess(t *testing.T) {
	var j tap.Joiner[*joinedPath]
	before, _ := join(&j, "a", requestEvent(0, "/before"))
	after, ok := join(&j, "a", requestEvent(0, "/after"))
	require.True(t, ok)
	require.NotSame(t, before, after)
	got, _ := join(&j, "a", endEvent(0))
	require.Equal(t, "/after", got.path)
	require.Zero(t, j.Len())
}

func TestJoinerGivesUpOldest(t *testing.T) {
	var lost []string
	keep := false
	j := tap.Joiner[*joinedPath]{Limit: 2, GiveUp: func(oldest *joinedPath) bool {
		lost = append(lost, oldest.path)
		return !keep
	}}
	for i, path := range []string{"/0", "/1", "/2"} {
		_, ok := join(&j, "", requestEvent(uint64(i), path))
		require.True(t, ok)
	}
	require.Equal(t, []string{"/0"}, lost)
	_, ok := join(&j, "", endEvent(0))
	require.False(t, ok)
	keep = true
	_, ok = join(&j, "", requestEvent(3, "/3"))
	require.False(t, ok, "the oldest stays")
	require.Equal(t, []string{"/0", "/1"}, lost)
	got, ok := join(&j, "", endEvent(1))
	require.True(t, ok)
	require.Equal(t, "/1", got.path)
	_, ok = join(&j, "", requestEvent(4, "/4"))
	require.True(t, ok, "there is room again")
	require.Equal(t, 2, j.Len())
}

// ExampleJoiner prints one line for each request.
func ExampleJoiner() {
	type record struct {
		path   string
		status int
	}
	events := []tap.Event{
		{ID: tap.StreamID{Stream: 0}, RequestInit: &tap.RequestInit{Path: "/books"}},
		{ID: tap.StreamID{Stream: 1}, RequestInit: &tap.RequestInit{Path: "/authors"}},
		{ID: tap.StreamID{Stream: 1}, ResponseInit: &tap.ResponseInit{Status: 404}},
		{ID: tap.StreamID{Stream: 0}, ResponseInit: &tap.ResponseInit{Status: 200}},
		{ID: tap.StreamID{Stream: 1}, ResponseEnd: &tap.ResponseEnd{SinceRequestInit: 2 * time.Millisecond}},
		{ID: tap.StreamID{Stream: 0}, ResponseEnd: &tap.ResponseEnd{SinceRequestInit: 5 * time.Millisecond}},
	}
	var requests tap.Joiner[*record]
	for i := range events {
		e := &events[i]
		r, ok := requests.Join("", e, func() (*record, bool) { return &record{path: e.RequestInit.Path}, true })
		switch {
		case !ok:
		case e.ResponseInit != nil:
			r.status = e.ResponseInit.Status
		case e.ResponseEnd != nil:
			fmt.Println(r.path, r.status, e.ResponseEnd.SinceRequestInit)
		}
	}
	// Output:
	// /authors 404 2ms
	// /books 200 5ms
}
