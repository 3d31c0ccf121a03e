package tap

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/tap/tappb"
)

// The features of Watch beyond Observe, with net/http on both sides of the tap.
func TestWatchNetHTTP(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/bad" {
			w.WriteHeader(http.StatusBadGateway)
		}
		_, _ = io.Copy(w, r.Body)
	}))
	defer upstream.Close()
	p := listen(t, NewServer(NewRegistry(WithBodies(64, func(contentType string, body []byte) []byte {
		if contentType != "application/json" {
			return nil
		}
		return bytes.ReplaceAll(body, []byte("s3cret"), []byte("***"))
	}))), nil)
	stack := Explain[*http.Request, *http.Response](p.reg)(Layer(p.reg, httplayer.Accessor{})(
		layer.Func[*http.Request, *http.Response](func(ctx context.Context, r *http.Request) (*http.Response, error) {
			layer.PickInfoFromContext(ctx).Explanation.Add(layer.Node{Name: "below"})
			return upstream.Client().Transport.RoundTrip(r)
		})))
	call := func(path, team, contentType, body string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, upstream.URL+path, strings.NewReader(body))
		require.NoError(t, err)
		r.Header.Set("X-Team", team)
		r.Header.Set("Content-Type", contentType)
		rsp, err := stack.Call(t.Context(), r)
		require.NoError(t, err)
		got, err := io.ReadAll(rsp.Body)
		require.NoError(t, err)
		require.Equal(t, body, string(got))
	}
	stream := p.watch(t.Context(), t, &tappb.WatchRequest{
		Limit: 2, Headers: []*tappb.HeaderMatch{exactly("x-team", "blue")}, Response: &tappb.ResponseMatch{MinStatus: 500, MaxStatus: 599},
		BodyBytes: 1000, Explain: true,
	})
	call("/good", "blue", "application/json", "{}")
	call("/bad", "red", "application/json", "{}")
	call("/bad", "blue", "application/json", `{"password":"s3cret"}`)
	call("/bad", "blue", "text/plain", strings.Repeat("s3cret", 30))

	got := []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)}
	require.Equal(t, "qre", kinds(got))
	require.Equal(t, "/bad", got[0].RequestInit.Path)
	require.Equal(t, 502, got[1].ResponseInit.Status)
	end := got[2].ResponseEnd
	require.JSONEq(t, `{"password":"***"}`, string(end.RequestBody.Data))
	require.JSONEq(t, `{"password":"***"}`, string(end.ResponseBody.Data))
	require.EqualValues(t, 21, end.Bytes, "as it was sent")
	require.Equal(t, []layer.Node{{Name: "below"}}, end.Explanation)

	end = endOf(t, []Event{recvWatch(t, stream), recvWatch(t, stream), recvWatch(t, stream)})
	require.Empty(t, end.RequestBody.Data, "not json: the hook withholds it")
	require.True(t, end.RequestBody.Cut)
	_, err := stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}
