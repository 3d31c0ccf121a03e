package httplayer

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gotower/gotower/layer"
)

var _ layer.Classifier[*http.Response] = Classify

func TestClassifyStatus(t *testing.T) {
	want := map[int]layer.Class{
		429: layer.Throttled,
		500: layer.Failure, 501: layer.Failure, 505: layer.Failure, 511: layer.Failure, 599: layer.Failure,
		502: layer.Retryable, 503: layer.Retryable, 504: layer.Retryable,
	}
	for _, status := range []int{
		101, 200, 204, 206, 301, 304, 400, 401, 403, 404, 408, 409, 425, 428, 429, 431, 499, 500, 501, 502, 503, 504, 505, 511, 599,
	} {
		for _, ended := range []bool{false, true} {
			class, failure := want[status]
			if !failure {
				class = layer.Success
			}
			rsp := &http.Response{StatusCode: status}
			assert.Equal(t, class, Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: ended}), "%d, ended: %v", status, ended)
		}
	}
	assert.Equal(t, layer.Success, Classify(layer.Outcome[*http.Response]{}))
}

func TestClassifyGRPC(t *testing.T) {
	want := map[string]layer.Class{
		"14": layer.Retryable, "8": layer.Throttled,
		"2": layer.Failure, "4": layer.Failure, "7": layer.Failure, "13": layer.Failure, "15": layer.Failure,
		// A gRPC status that is not a number is UNKNOWN.
		"x": layer.Failure, "-1": layer.Failure, "99999999999999999999": layer.Failure,
	}
	for code := range 20 {
		if s := strconv.Itoa(code); want[s] == 0 {
			want[s] = layer.Success
		}
	}
	for code, class := range want {
		said := http.Header{"Grpc-Status": {code}}
		is := func(rsp *http.Response, ended bool, class layer.Class, when string) {
			t.Helper()
			rsp.StatusCode = 200
			assert.Equal(t, class, Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: ended}), "%s, %s", code, when)
		}
		is(&http.Response{Header: said}, false, class, "nothing but trailers, at the head")
		is(&http.Response{Header: said}, true, class, "nothing but trailers, at the end")
		is(&http.Response{Trailer: said}, true, class, "trailers")
		is(&http.Response{Trailer: said}, false, layer.Success, "trailers that have not arrived")
		is(&http.Response{Trailer: said, Header: http.Header{"Grpc-Status": {"0"}}}, true, class, "trailers have the last word")
	}
}

func TestClassifyGRPCAndStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		status        int
		head, trailer http.Header
		want          layer.Class
	}{
		"OK":                         {200, nil, http.Header{"Grpc-Status": {"0"}}, layer.Success},
		"no status at all":           {200, http.Header{"Content-Type": {"application/grpc"}}, nil, layer.Success},
		"no status, announced":       {200, nil, http.Header{"Grpc-Status": nil}, layer.Success},
		"no status, and not a 200":   {503, http.Header{"Content-Type": {"application/grpc"}}, nil, layer.Retryable},
		"the code counts for more":   {503, http.Header{"Grpc-Status": {"0"}}, nil, layer.Success},
		"and when it is the failure": {200, http.Header{"Grpc-Status": {"14"}}, nil, layer.Retryable},
	} {
		rsp := &http.Response{StatusCode: tt.status, Header: tt.head, Trailer: tt.trailer}
		assert.Equal(t, tt.want, Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: true}), name)
	}
}

func TestClassifyErrors(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want layer.Class
	}{
		"of the endpoint": {&layer.Error{Layer: "endpoint", Err: &peerError{errors.New("odd")}}, layer.Retryable},
		"of the network":  {fmt.Errorf("x: %w", syscall.ECONNRESET), layer.Retryable},
		"broken off":      {io.ErrUnexpectedEOF, layer.Retryable},
		"a try too long":  {&layer.Error{Layer: "retry", Kind: layer.ErrAttemptTimeout}, layer.Retryable},
		"all too long":    {&layer.Error{Layer: "timeout", Kind: layer.ErrTimeout}, layer.Failure},
		"head too late":   {&layer.Error{Layer: "timeout", Kind: layer.ErrResponseHeaderTimeout}, layer.Failure},
		"chosen, 503":     {fmt.Errorf("x: %w", &StatusError{Code: 503}), layer.Retryable},
		"chosen, 429":     {&StatusError{Code: 429}, layer.Throttled},
		"chosen, 400":     {&StatusError{Code: 400}, layer.Success},
		"chosen badly":    {&StatusError{}, layer.Failure},
		"anything else":   {errors.New("odd"), layer.Failure},
	} {
		assert.Equal(t, tt.want, Classify(layer.Outcome[*http.Response]{Err: tt.err}), name)
	}
}

// Trailers-only responses and trailers are classified when they arrive over a connection.
func TestClassifyReceivedResponses(t *testing.T) {
	e := endpoint(t, serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		switch r.URL.Path {
		case "/only":
			w.Header().Set("Grpc-Status", "14")
		case "/after":
			w.Header().Set("Trailer", "Grpc-Status")
			say(w, "message")
			w.Header().Set("Grpc-Status", "14")
		case "/unannounced":
			say(w, "message")
			w.Header().Set(http.TrailerPrefix+"Grpc-Status", "14")
		case "/none":
			say(w, "message")
		}
	})), WithHTTP2())
	for path, want := range map[string][2]layer.Class{
		"/only":        {layer.Retryable, layer.Retryable},
		"/after":       {layer.Success, layer.Retryable},
		"/unannounced": {layer.Success, layer.Retryable},
		"/none":        {layer.Success, layer.Success},
	} {
		rsp, err := e.Call(t.Context(), request(t, http.MethodPost, "http://web"+path, "x"))
		require.NoError(t, err)
		head := Classify(layer.Outcome[*http.Response]{Response: rsp})
		read(t, rsp)
		end := Classify(layer.Outcome[*http.Response]{Response: rsp, Ended: true})
		assert.Equal(t, want, [2]layer.Class{head, end}, path)
	}
}
