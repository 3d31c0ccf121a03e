package httplayer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/httplayer"
	"github.com/gotower/gotower/layer/httplayer/mesh"
)

// hello is a server to call.
func hello() *httptest.Server {
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "hello from %s%s", r.Host, r.URL.Path)
	}))
}

// An http.Client over an endpoint: all requests go to that address, for any host name.
func ExampleRoundTripper() {
	srv := hello()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel() // closes the endpoint's connections

	svc := httplayer.NewStack().
		Timeout(5 * time.Second).
		Limit(100).
		Service(httplayer.NewEndpoint(ctx, srv.Listener.Addr().String()))
	client := &http.Client{Transport: httplayer.RoundTripper(svc)}

	rsp, err := client.Get("http://web.default/greeting")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	fmt.Println(rsp.Status, string(body), err)
	// Output: 200 OK hello from web.default/greeting <nil>
}

// A reverse proxy is a Handler over an endpoint.
func ExampleHandler() {
	srv := hello()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	endpoint := httplayer.NewEndpoint(ctx, srv.Listener.Addr().String())
	proxy := httptest.NewServer(httplayer.Handler(endpoint))
	defer proxy.Close()

	req, err := http.NewRequestWithContext(ctx, http.MethodGet, proxy.URL+"/a", http.NoBody)
	if err != nil {
		fmt.Println(err)
		return
	}
	req.Host = "web.default"
	rsp, err := http.DefaultClient.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	fmt.Println(rsp.Status, string(body), err)
	// Output: 200 OK hello from web.default/a <nil>
}

// An error response has the reason of the failure only with WithErrorHeaders.
func ExampleHandler_errors() {
	refused := func(context.Context, *http.Request) (*http.Response, error) {
		return nil, &layer.Error{Layer: "limit", Target: "web.default:80", Kind: layer.ErrNotReady, Reason: "100 of 100 in flight"}
	}
	h := httplayer.Handler(layer.Func[*http.Request, *http.Response](refused))

	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "http://web.default/", http.NoBody))
	fmt.Printf("%d %q\n", rec.Code, rec.Header().Get("L5d-Proxy-Error"))

	h = httplayer.Handler(layer.Func[*http.Request, *http.Response](refused), mesh.WithErrorHeaders(true))
	rec = httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "http://web.default/", http.NoBody))
	fmt.Printf("%d %q\n", rec.Code, rec.Header().Get("L5d-Proxy-Error"))
	// Output:
	// 503 ""
	// 503 "limit web.default:80: not ready: 100 of 100 in flight"
}

// An endpoint is ready at once, and connects for the first request.
func ExampleNewEndpoint() {
	srv := hello()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	endpoint := httplayer.NewEndpoint(ctx, srv.Listener.Addr().String(), httplayer.WithHTTP1(), httplayer.WithMaxConns(10))
	fmt.Println(endpoint.Ready(ctx), endpoint.Describe().State.Get("connections"))
	req, _ := http.NewRequest(http.MethodGet, "http://web.default/", nil)
	rsp, err := endpoint.Call(ctx, req)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.Copy(io.Discard, rsp.Body)
	_ = rsp.Body.Close()
	for _, a := range endpoint.Describe().State[1:] { // without the address
		fmt.Print(a.Key, "=", a.Value, " ")
	}
	// Output:
	// <nil> 0
	// protocol=http/1.1 connections=1 idle=1 in_flight=0 link=up
}

// The status of an error, for a handler that writes the response itself.
func ExampleStatusFromError() {
	for _, err := range []error{layer.ErrFailFast, layer.ErrNotReady, io.ErrUnexpectedEOF, errors.New("odd")} {
		status, code := httplayer.StatusFromError(err)
		fmt.Printf("%-15v %d %s, gRPC %d\n", err, status, http.StatusText(status), code)
	}
	// Output:
	// fail-fast       504 Gateway Timeout, gRPC 4
	// not ready       503 Service Unavailable, gRPC 14
	// unexpected EOF  502 Bad Gateway, gRPC 14
	// odd             500 Internal Server Error, gRPC 13
}

// An address of many servers: connections are replaced from time to time, so that new
// servers receive their share.
func ExampleWithMaxConnAge() {
	srv := hello()
	defer srv.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()

	endpoint := httplayer.NewEndpoint(ctx, srv.Listener.Addr().String(), httplayer.WithMaxConnAge(5*time.Minute))
	req, _ := http.NewRequest(http.MethodGet, "http://web.default/", nil)
	rsp, err := endpoint.Call(ctx, req)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, _ = io.Copy(io.Discard, rsp.Body)
	_ = rsp.Body.Close()
	state := endpoint.Describe().State
	fmt.Println(state.Get("connections"), "open")
	// Output:
	// 1 open
}

// An error that specifies the status of its response.
func ExampleStatusError() {
	for _, err := range []error{
		&httplayer.StatusError{Code: http.StatusForbidden, Reason: "books may not call web"},
		&httplayer.StatusError{Code: http.StatusLoopDetected, Reason: "gateway loop", Close: true},
		&httplayer.IdentityError{Required: "web.default.serviceaccount.identity"},
	} {
		status, grpc := httplayer.StatusFromError(err)
		fmt.Println(status, grpc, err)
	}
	// Output:
	// 403 7 books may not call web
	// 508 10 gateway loop
	// 502 14 identity required: "web.default.serviceaccount.identity", but the endpoint has none
}
