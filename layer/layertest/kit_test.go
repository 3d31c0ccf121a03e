package layertest

import (
	"context"
	"math"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

// TestRunReports runs this program again with a defective layer, and checks its
// output.
func TestRunReports(t *testing.T) {
	const inside = "LAYERTEST_WRONG"
	if os.Getenv(inside) != "" {
		Run(t, limiting(leaksOnPanic))
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRunReports$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	out, err := cmd.CombinedOutput()
	require.Error(t, err)
	for name, result := range map[string]string{
		"03_Ready_reserves_nothing":                      "PASS",
		"08_the_limit_holds_and_all_capacity_comes_back": "FAIL",
		"09_first_in,_first_out":                         "SKIP",
		"12_closed_is_final":                             "PASS",
		"15_errors_and_panics_pass":                      "FAIL",
	} {
		assert.Contains(t, string(out), "--- "+result+": TestRunReports/"+name)
	}
	assert.Contains(t, string(out), "it declares no Queue")
}

func TestSpecIncomplete(t *testing.T) {
	_, err := Layer{}.subject()
	require.EqualError(t, err, "the spec has neither a Layer nor a New")
	_, err = LayerOf[string, string]{Layer: func(next stringService) stringService { return next }}.subject()
	require.EqualError(t, err, "the spec has no factory for its requests or responses")
	_, err = Service{}.subject()
	require.EqualError(t, err, "the spec has no New")
	_, err = ServiceOf[string, string]{New: func(context.Context) stringService { return nil }}.subject()
	require.EqualError(t, err, "the spec has no factory for its requests")
}

func TestSpecInvalid(t *testing.T) {
	for want, spec := range map[string]interface {
		subject() (*subject[*Request, *Response], error)
	}{
		"Queue of the spec is negative":                             Layer{Layer: passes, Queue: -3},
		"MaxWait of the spec is negative":                           Layer{Layer: passes, MaxWait: -1},
		"Callers of the spec is negative":                           Layer{Layer: passes, Callers: -1},
		"Limit and Queue of the spec are more than 100000 together": Layer{Layer: passes, Limit: math.MaxInt, Queue: 1},
		"Request of the spec returns nil":                           Layer{Layer: passes, Request: func(int) *Request { return nil }},
		"Response of the spec returns nil":                          Layer{Layer: passes, Response: func(int) *Response { return nil }},
	} {
		_, err := spec.subject()
		require.ErrorContains(t, err, want)
	}
	filled := oneOf.with("")
	filled.Fill = func(service) func() { return nil }
	for want, spec := range map[string]interface {
		subject() (*subject[*Request, *Response], error)
	}{
		"the layer of the spec returns no service":         Layer{Layer: func(service) service { return nil }},
		"New of the spec returns no service":               Service{New: func(context.Context) service { return nil }},
		"Fill of the spec returns no function that frees ": filled,
	} {
		s, err := spec.subject()
		require.NoError(t, err)
		synctest.Test(t, func(t *testing.T) { require.ErrorContains(t, numbered(t, 1).verify(s), want) })
	}
}

type stringService = layer.Service[string, string]

func TestMessageBody(t *testing.T) {
	assert.True(t, layer.HasBody[*Request]())
	assert.True(t, layer.HasBody[*http.Response]())
	assert.False(t, layer.HasBody[Request]())
	assert.False(t, layer.HasBody[string]())
	assert.False(t, layer.HasBody[*struct{ Body string }]())

	rsp, body := &http.Response{}, newRequestBody(1)
	responses := messagesOf[*http.Response](nil)
	assert.Nil(t, responses.bodyOf(rsp))
	responses.setBody(rsp, body)
	assert.Same(t, body, responses.bodyOf(rsp))
	responses.setBody(rsp, nil)
	assert.Nil(t, rsp.Body)
	assert.Nil(t, responses.bodyOf(rsp))
	assert.Nil(t, responses.bodyOf(nil))
	assert.Nil(t, messagesOf[string](nil).bodyOf("text"))
}

func TestMessageChanged(t *testing.T) {
	fresh := func() *http.Request {
		req, err := http.NewRequest(http.MethodPost, "http://web.test/a", strings.NewReader("x"))
		require.NoError(t, err)
		return req
	}
	for want, change := range map[string]func(*http.Request){
		"":       func(r *http.Request) { r.Body = nil },
		"Header": func(r *http.Request) { r.Header.Set("X-Seen", "1") },
		"URL":    func(r *http.Request) { r.URL.Path = "/b" },
		"Host":   func(r *http.Request) { r.Host = "other.test" },
	} {
		req := fresh()
		change(req)
		assert.Equal(t, want, messagesOf(func(int) *http.Request { return fresh() }).changed(req, 0))
	}
	constant := messagesOf(func(int) string { return "b" })
	assert.Equal(t, "string", constant.changed("a", 0))
	assert.Empty(t, constant.changed("b", 0))
	calls := 0
	counted := messagesOf(func(int) string { calls++; return strconv.Itoa(calls) })
	assert.Empty(t, counted.changed("a", 0), "equal calls of the factory differ")
}

func TestGoroutines(t *testing.T) {
	require.Nil(t, goroutines(), "outside of a bubble")
	synctest.Test(t, func(t *testing.T) {
		before := goroutines()
		require.NoError(t, checkLeaks(before, false))
		stop := make(chan struct{})
		go func() { <-stop }()
		err := checkLeaks(before, false)
		require.ErrorContains(t, err, "1 goroutines leak")
		require.ErrorContains(t, err, "kit_test.go")
		close(stop)
		require.NoError(t, checkLeaks(before, false))
	})
}
