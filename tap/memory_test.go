package tap

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

func heapNow() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// An event must not keep a long request line in memory by a path that is a small part of
// it.
func TestMemoryOfLongQueries(t *testing.T) {
	reg := new(Registry)
	svc := Layer(reg, httplayer.Accessor{}, Inbound)(layer.Func[*http.Request, *http.Response](
		func(_ context.Context, r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Body: http.NoBody, Request: r}, nil
		}))
	before := heapNow()
	w := watchOn(t, reg, &tappb.WatchRequest{})
	for range 500 {
		line := "GET http://web/a?" + strings.Repeat("q", 20<<10) + " HTTP/1.1\r\nHost: web\r\n\r\n"
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line)))
		require.NoError(t, err)
		r.RemoteAddr = "127.0.0.1:4242"
		rsp, err := svc.Call(t.Context(), r)
		require.NoError(t, err)
		_ = rsp.Body.Close()
	}
	require.Less(t, heapNow()-before, int64(1<<20))
	require.Len(t, w.buf.Load().events, 400)
	require.Equal(t, "/a", events(w)[0].RequestInit.Path)
}

// An event does not keep long labels or content types in memory.
func TestMemoryOfNamesAndTypes(t *testing.T) {
	reg := NewRegistry(WithBodies(100, asItIs))
	svc := Layer[*bodied, *reply](reg, longNames{newTee()}, Inbound)(layer.Func[*bodied, *reply](
		func(_ context.Context, b *bodied) (*reply, error) {
			_, err := io.Copy(io.Discard, b.Body)
			return &reply{
				header: fields{{"content-type", strings.Repeat("t", 20<<10)}},
				Body:   io.NopCloser(strings.NewReader("answer")),
			}, err
		}))
	before := heapNow()
	w := watchOn(t, reg, &tappb.WatchRequest{BodyBytes: 100})
	for range 500 {
		req := saying("question")
		req.header = fields{{"content-type", strings.Repeat("t", 20<<10)}}
		rsp, err := svc.Call(t.Context(), req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, rsp.Body)
		require.NoError(t, err)
	}
	require.Less(t, heapNow()-before, int64(1<<20))
	require.NotEmpty(t, events(w))
	require.EqualValues(t, maxText, w.buf.Load().room.Load(), "all room is back")
}

// longNames returns long labels of every client.
type longNames struct{ withBodies }

func (longNames) SourceLabels(*bodied) map[string]string {
	return map[string]string{"client_id": strings.Repeat("n", 10<<10)}
}
