package layertest_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

// TestConform is the complete test of a layer for any message types.
func TestConform(t *testing.T) {
	layertest.Run(t, layertest.Layer{
		Layer: layer.Limit[*layertest.Request, *layertest.Response](8),
		Limit: 8,
	})
}

func ExampleMock() {
	mock := layertest.NewMock[string, string]()
	mock.Serve(func(_ context.Context, name string) (string, error) { return "hello, " + name, nil })
	mock.Allow(1)

	for range 2 {
		rsp, err := mock.Call(context.Background(), "gopher")
		fmt.Printf("%q %v\n", rsp, err)
	}
	fmt.Println("ready again:", layer.Poll(mock) == nil)
	// Output:
	// "hello, gopher" <nil>
	// "" mock: not ready: nothing allowed
	// ready again: false
}

func ExampleNetwork() {
	var network layertest.Network
	l, err := network.Listen("tcp", "10.0.0.1:80")
	if err != nil {
		fmt.Println(err)
		return
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "you asked for %s", r.URL.Path)
	})}
	go server.Serve(l)
	defer server.Close()

	client := &http.Client{Transport: &http.Transport{DialContext: network.DialContext}}
	defer client.CloseIdleConnections()
	rsp, err := client.Get("http://10.0.0.1/tea")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer rsp.Body.Close()
	body, _ := io.ReadAll(rsp.Body)
	fmt.Println(string(body))

	_, err = client.Get("http://10.0.0.2/")
	fmt.Println(err)
	// Output:
	// you asked for /tea
	// Get "http://10.0.0.2/": dial tcp 10.0.0.2:80: connect: connection refused
}
