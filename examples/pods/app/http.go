package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// serveHTTP runs an HTTP server until ctx ends. The server responds with the request body. The
// response header Pod is the pod's name. The response header Client is the value of the request
// header l5d-client-id.
func serveHTTP(ctx context.Context, pod, addr string) error {
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("Pod", pod)
		// A second header would show in the output, because a proxy must not leave the forged one.
		w.Header().Set("Client", strings.Join(r.Header.Values("L5d-Client-Id"), " and "))
		_, _ = w.Write(body)
	})
	srv := &http.Server{Addr: addr, Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	// Close makes ListenAndServe return ErrServerClosed.
	context.AfterFunc(ctx, func() { _ = srv.Close() })
	if err := srv.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// concurrency is how many requests a client may have open.
const concurrency = 10

// postHTTP sends n requests with a body of 64 KiB. For each response, it prints the pod's name
// and the client ID that the server received.
func postHTTP(ctx context.Context, url, marker string, n int) error {
	// Without this limit, most connections would be closed after a request.
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: concurrency}}
	defer client.CloseIdleConnections()
	// The marker is repeated up to a size of 64 KiB.
	text := strings.Repeat(marker+"\n", 64<<10/(len(marker)+1))
	answers := make([]string, n)
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(concurrency)
	for i := range n {
		all.Go(func() (err error) {
			answers[i], err = post(ctx, client, url, text)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	fmt.Println(strings.Join(answers, "\n"))
	return nil
}

// post sends one request with the body text and a forged client ID. It checks that the response
// carries the same body, and returns the line to print: the pod name and the client ID that the
// server received.
func post(ctx context.Context, client *http.Client, url, text string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(text)) //nolint:gosec // the URL is an argument
	if err != nil {
		return "", err
	}
	req.Header.Set("L5d-Client-Id", "forged") // a forged identity
	rsp, err := client.Do(req)                //nolint:gosec // likewise
	if err != nil {
		return "", err
	}
	defer rsp.Body.Close()
	body, err := io.ReadAll(rsp.Body)
	if err != nil {
		return "", err
	}
	if rsp.StatusCode != http.StatusOK || string(body) != text {
		return "", fmt.Errorf("%s: %s, with %d bytes that came back of %d: %s", url, rsp.Status, len(body), len(text), rsp.Header)
	}
	return rsp.Header.Get("Pod") + " " + rsp.Header.Get("Client"), nil
}
