package httplayer_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
)

// respondWith returns a service that responds with a status and a text.
func respondWith(status int, text string) layer.Func[*http.Request, *http.Response] {
	return func(_ context.Context, req *http.Request) (*http.Response, error) {
		return &http.Response{
			StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Request: req,
			Body: io.NopCloser(strings.NewReader(text)), ContentLength: int64(len(text)),
		}, nil
	}
}

// instead is a Fallback to a default.
func instead(text string) httplayer.FallbackPolicy {
	return httplayer.FallbackPolicy{Handle: func(ctx context.Context, req *http.Request, _ layer.Outcome[*http.Response]) (*http.Response, error) {
		return respondWith(http.StatusOK, text)(ctx, req)
	}}
}

// The writer of a request body is notified when the fallback has answered the request
// without reading the body.
func TestFallbackClosesRequestBody(t *testing.T) {
	svc := httplayer.NewStack().Fallback(instead("default")).Limit(0).Service(respondWith(http.StatusOK, "never"))
	client := &http.Client{Transport: httplayer.RoundTripper(svc)}
	body, writer := io.Pipe()
	wrote := make(chan error, 1)
	go func() {
		_, err := io.WriteString(writer, "hello")
		wrote <- err
	}()
	rsp, err := client.Post("http://web.test/", "text/plain", body)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	require.Equal(t, "default", string(text))
	select {
	case err := <-wrote:
		require.ErrorIs(t, err, io.ErrClosedPipe)
	case <-time.After(30 * time.Second):
		t.Error("the body was not closed")
		body.Close()
		<-wrote
	}
}

// The connection is used for the next request after a fallback response.
func TestFallbackKeepsTheConnection(t *testing.T) {
	t.Parallel()
	const post = "POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 5\r\n\r\nhello"
	stack := httplayer.NewStack().Fallback(instead("default")).Limit(0)
	last := strings.Replace(post, "Content-Length", "Connection: close\r\nContent-Length", 1)
	svc := stack.Service(respondWith(http.StatusOK, "never"))
	require.Equal(t, []string{"default", "default", "default"}, exchanged(t, svc, post+post+last))
}
