package tap

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"pgregory.net/rapid"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/tap/tappb"
)

func asItIs(_ string, body []byte) []byte { return body }

// talk is an endpoint that reads the request and answers with its body.
func talk(_ context.Context, b *bodied) (*reply, error) {
	said := []byte("nothing")
	if b.Body != nil {
		said, _ = io.ReadAll(b.Body)
	}
	return &reply{
		status: 200, header: fields{{"Content-Type", "text/answer"}},
		Body: io.NopCloser(bytes.NewReader(said)),
	}, nil
}

func talking(reg *Registry, inner layer.Func[*bodied, *reply]) layer.Service[*bodied, *reply] {
	return Layer[*bodied, *reply](reg, newTee())(inner)
}

func saying(s string) *bodied {
	return &bodied{
		call: call{method: "POST", path: "/", header: fields{{"Content-Type", "text/question"}}},
		Body: io.NopCloser(strings.NewReader(s)),
	}
}

// say sends a request with a body, and reads the response.
func say(t testing.TB, svc layer.Service[*bodied, *reply], s string) {
	t.Helper()
	rsp, err := svc.Call(t.Context(), saying(s))
	require.NoError(t, err)
	got, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, s, string(got), "watchers do not change the body")
	require.NoError(t, rsp.Body.Close())
}

func endOf(t testing.TB, all []Event) *ResponseEnd {
	t.Helper()
	require.Equal(t, "qre", kinds(all))
	return all[2].ResponseEnd
}

func TestBodiesRequireRedact(t *testing.T) {
	for name, opts := range map[string][]RegistryOption{
		"no option": nil, "no hook": {WithBodies(10, nil)}, "no bytes": {WithBodies(0, asItIs)},
	} {
		_, err := NewRegistry(opts...).terms(&tappb.WatchRequest{BodyBytes: 1})
		require.Equal(t, codes.PermissionDenied, status.Code(err), name)
	}
	terms, err := NewRegistry(WithBodies(1<<30, asItIs)).terms(&tappb.WatchRequest{BodyBytes: 1 << 31})
	require.NoError(t, err)
	require.Equal(t, 256<<10, terms.body)
}

func TestBodies(t *testing.T) {
	var mu sync.Mutex
	var heard []string
	reg := NewRegistry(WithBodies(16, func(contentType string, body []byte) []byte {
		mu.Lock()
		defer mu.Unlock()
		heard = append(heard, contentType+": "+string(body))
		for i := range body { // it is the hook's
			if 'a' <= body[i] && body[i] <= 'z' {
				body[i] -= 'a' - 'A'
			}
		}
		return body
	}))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 1000})
	short := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 4})
	without := watchOn(t, reg, &tappb.WatchRequest{})
	svc := talking(reg, talk)

	say(t, svc, "what is it?")
	require.Empty(t, heard, "the hook is not in the way of a request")
	end := endOf(t, readAll(w))
	require.Equal(t, "WHAT IS IT?", string(end.RequestBody.Data))
	require.Equal(t, "WHAT IS IT?", string(end.ResponseBody.Data))
	require.False(t, end.RequestBody.Cut)
	require.False(t, end.ResponseBody.Cut)
	require.Equal(t, []string{"text/question: what is it?", "text/answer: what is it?"}, heard)

	end = endOf(t, readAll(short))
	require.Equal(t, "WHAT", string(end.RequestBody.Data))
	require.True(t, end.RequestBody.Cut)
	require.Equal(t, "text/question: what is it?", heard[2], "the hook sees more than is asked for")

	require.Nil(t, endOf(t, readAll(without)).RequestBody)

	say(t, svc, "one that is longer than sixteen")
	end = endOf(t, readAll(w))
	require.Equal(t, "ONE THAT IS LONG", string(end.ResponseBody.Data))
	require.True(t, end.ResponseBody.Cut)
	say(t, svc, "exactly sixteen.")
	require.False(t, endOf(t, readAll(w)).ResponseBody.Cut)
}

func TestBodiesAbsent(t *testing.T) {
	reg := NewRegistry(WithBodies(16, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9})
	svc := talking(reg, func(_ context.Context, b *bodied) (*reply, error) {
		return &reply{Body: io.NopCloser(strings.NewReader(""))}, nil
	})
	_, err := svc.Call(t.Context(), &bodied{})
	require.NoError(t, err)
	require.Equal(t, "qr", kinds(readAll(w)))
	say(t, svc, "")
	end := readAll(w)[2].ResponseEnd
	require.Nil(t, end.RequestBody)
	require.Nil(t, end.ResponseBody)

	// An access that cannot read along.
	w = watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9})
	send(t, stand(reg, respond("hello")), get("/"))
	require.Nil(t, endOf(t, readAll(w)).ResponseBody)
}

func TestBodiesRedactWithholdsAndPanics(t *testing.T) {
	reg := NewRegistry(WithBodies(16, func(_ string, body []byte) []byte {
		if string(body) == "boom" {
			panic("boom")
		}
		return nil
	}))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9})
	svc := talking(reg, talk)
	say(t, svc, "quiet")
	require.Equal(t, &Body{}, endOf(t, readAll(w)).RequestBody)
	say(t, svc, "boom")
	require.Equal(t, &Body{Cut: true}, endOf(t, readAll(w)).RequestBody)
}

// Only the part of a body that was read before the end is shown.
func TestBodiesReadInPart(t *testing.T) {
	reg := NewRegistry(WithBodies(16, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9})
	var late io.Reader
	svc := talking(reg, func(_ context.Context, b *bodied) (*reply, error) {
		late = b.Body
		_, err := io.ReadFull(b.Body, make([]byte, 2))
		return &reply{Body: io.NopCloser(strings.NewReader("answer"))}, err
	})
	rsp, err := svc.Call(t.Context(), saying("question"))
	require.NoError(t, err)
	_, err = io.ReadFull(rsp.Body, make([]byte, 3))
	require.NoError(t, err)
	require.NoError(t, rsp.Body.Close())
	_, err = io.ReadAll(late)
	require.NoError(t, err)
	end := endOf(t, readAll(w))
	require.Equal(t, "qu", string(end.RequestBody.Data))
	require.Equal(t, "ans", string(end.ResponseBody.Data))
	require.EqualValues(t, maxText, w.buf.Load().room.Load())
}

// A body that is sent again, from any place that was reached, is the same body.
func TestExcerptPrefix(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		body := rapid.SliceOfN(rapid.Byte(), 0, 3000).Draw(t, "body")
		reg := NewRegistry(WithBodies(rapid.IntRange(1, 2000).Draw(t, "most"), asItIs))
		w, err := reg.watch(terms{match: &condition{}, limit: 1, body: 1})
		require.NoError(t, err)
		x := &excerpt{w: w, room: w.buf.Load()}
		reached := 0
		for range rapid.IntRange(0, 20).Draw(t, "reads") {
			from := rapid.IntRange(0, reached).Draw(t, "from")
			to := rapid.IntRange(from, len(body)).Draw(t, "to")
			x.take(int64(from), bytes.Clone(body[from:to]))
			reached = max(reached, to)
			require.EqualValues(t, maxText-cap(x.data), x.room.room.Load())
		}
		want := body[:min(reached, reg.maxBody)]
		got := x.body()
		x.take(int64(reached), []byte("late"))
		require.EqualValues(t, maxText, x.room.room.Load())
		if len(want) == 0 {
			require.Nil(t, got)
			return
		}
		require.Equal(t, want, got.Data)
		require.Equal(t, reached > reg.maxBody, got.Cut)
	})
}

// Bodies of open requests and of unread events use only the memory of the buffer of the
// watcher.
func TestMemoryOfBodies(t *testing.T) {
	const size = 200 << 10
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	reg := NewRegistry(WithBodies(size, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: size})
	svc := talking(reg, func(_ context.Context, b *bodied) (*reply, error) {
		_, err := io.Copy(io.Discard, b.Body)
		return &reply{Body: io.NopCloser(io.LimitReader(zeros{}, size))}, err
	})
	before := heap()
	var open []*reply
	for range 20 {
		req := saying("")
		req.Body = io.NopCloser(io.LimitReader(zeros{}, size))
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		open = append(open, rsp)
	}
	require.Less(t, heap()-before, int64(1<<20), "in flight")
	for _, rsp := range open {
		_, err := io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
	}
	require.Less(t, heap()-before, int64(1<<20), "not read")
	whole, cut := 0, 0
	for _, e := range readAll(w) {
		if e.ResponseEnd == nil {
			continue
		}
		for _, b := range []*Body{e.ResponseEnd.RequestBody, e.ResponseEnd.ResponseBody} {
			switch {
			case len(b.Data) == size:
				whole++
			case b.Cut && b.Data == nil:
				cut++
			default:
				t.Errorf("%d bytes, cut: %v", len(b.Data), b.Cut)
			}
		}
	}
	require.Equal(t, 3, whole)
	require.Equal(t, 37, cut)
	require.EqualValues(t, maxText, w.buf.Load().room.Load())
	runtime.KeepAlive(open)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// No more of a body is kept after the watcher was closed.
func TestBodiesAfterWatcherClose(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 9})
	x := newBodies(w, fields{})
	x.request.take(0, []byte("kept"))
	reg.close(w)
	x.request.take(4, []byte("not kept"))
	require.Nil(t, x.request.data)
	require.Nil(t, x.request.body())
	require.Nil(t, newBodies(w, fields{}))
}
