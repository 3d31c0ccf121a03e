// Command httpclient is the smallest program that uses package httpclient.
package main

import (
	"context"
	"net/http"

	"github.com/gotower/gotower/httpclient"
)

func main() {
	client := &http.Client{Transport: httpclient.NewTransport(context.Background())}
	_, _ = client.Get("http://web.example/") //nolint:noctx,bodyclose // it only shows the size
}
