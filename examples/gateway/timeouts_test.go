package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// trickle is a body of several parts with a pause before each.
type trickle struct {
	parts int
	pause time.Duration
}

func (b *trickle) Read(p []byte) (int, error) {
	if b.parts == 0 {
		return 0, io.EOF
	}
	time.Sleep(b.pause)
	b.parts--
	return copy(p, "part"), nil
}

// upload sends body with the given length, or chunked if the length is -1.
func (p *process) upload(t *testing.T, path string, body io.Reader, length int64) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+p.addresses["http"]+path, body)
	require.NoError(t, err)
	req.ContentLength = length
	rsp, err := p.client.Do(req)
	require.NoError(t, err)
	defer rsp.Body.Close()
	text, err := io.ReadAll(rsp.Body)
	require.NoError(t, err)
	return answer{rsp, string(text)}
}

// The timeouts of a route count from the end of the request: an upload may take longer.
func TestTimeoutsUpload(t *testing.T) {
	t.Parallel()
	p := start(t, head+"services:\n"+service("a", backend(t, "a"))+
		service("hangs", serverAt(t, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}))+`
routes:
- {name: hangs, matches: [{path: {exact: /hangs}}], backendRefs: [{name: hangs}], timeouts: {request: 1s}}
- {name: all, backendRefs: [{name: a}], timeouts: {request: 1s, backendRequest: 500ms}}
`)
	const parts = 20
	for _, length := range []int64{4 * parts, -1} {
		a := p.upload(t, "/", &trickle{parts, 100 * time.Millisecond}, length)
		assert.Equal(t, fmt.Sprint(200, strings.Repeat("part", parts)), fmt.Sprint(a.StatusCode, strings.TrimPrefix(a.body, "a POST "+p.addresses["http"]+" /")))
	}
	start := time.Now()
	assert.Equal(t, http.StatusGatewayTimeout, p.upload(t, "/hangs", &trickle{parts, 100 * time.Millisecond}, -1).StatusCode)
	assert.Greater(t, time.Since(start), 3*time.Second-time.Millisecond, "a second after the upload of two")
}

// requestBodyIdleTimeout limits the pauses in a body with a length.
func TestRequestBodyIdleTimeout(t *testing.T) {
	t.Parallel()
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", requestBodyIdleTimeout: 300ms}]`, 1)+
		"services:\n"+service("a", backend(t, "a"))+"routes: [{name: all, backendRefs: [{name: a}]}]\n")
	slow := &trickle{2, time.Second}
	assert.Equal(t, http.StatusRequestTimeout, p.upload(t, "/", io.MultiReader(strings.NewReader("part"), slow), 12).StatusCode)
	assert.Equal(t, http.StatusOK, p.upload(t, "/", &trickle{2, time.Second}, -1).StatusCode)
}

// minRequestBodyRate limits the time of a body with a length, although its pauses are short.
func TestMinRequestBodyRate(t *testing.T) {
	t.Parallel()
	p := start(t, strings.Replace(head, `"127.0.0.1:0"}]`, `"127.0.0.1:0", requestBodyIdleTimeout: 1s, minRequestBodyRate: 1000}]`, 1)+
		"services:\n"+service("a", backend(t, "a"))+"routes: [{name: all, backendRefs: [{name: a}]}]\n")
	const parts = 40
	assert.Equal(t, http.StatusRequestTimeout, p.upload(t, "/", &trickle{parts, 100 * time.Millisecond}, 4*parts).StatusCode)
	assert.Equal(t, http.StatusOK, p.upload(t, "/", &trickle{parts, 100 * time.Millisecond}, -1).StatusCode)
}
