package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gotower/gotower/httpclient"
)

// clientRole returns the [role] of a client that sends requests to the backend itself. An empty
// line calls the [command] memory. Any other line is one for [load.run]: the process sends requests
// in a closed loop, and returns a [summary].
func clientRole(newTransport func(ctx context.Context, backend string) http.RoundTripper) role {
	return func(ctx context.Context, args []string, ready func(string, command)) error {
		client := &http.Client{Transport: newTransport(ctx, args[1])}
		url := "http://" + args[1] + smallPath
		ready("", func(line string) (any, error) {
			if strings.TrimSpace(line) == "" {
				return memory(line)
			}
			// A client's loop is always closed, so the rate is not used.
			var rate, seconds float64
			if _, err := fmt.Sscan(line, &rate, &seconds); err != nil {
				return nil, err
			}
			return sendFor(client, url, time.Duration(seconds*float64(time.Second)))
		})
		// The parent kills the process.
		select {}
	}
}

// standardClient is net/http's client with http.DefaultTransport's settings and room for an idle
// connection per request. The backend's responses are not compressed.
func standardClient(context.Context, string) http.RoundTripper {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 2 * atOnce,
		IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second, ExpectContinueTimeout: time.Second,
	}
}

// balancedClient returns a client of package httpclient with its default settings, which sends requests to
// backend.
func balancedClient(ctx context.Context, backend string) http.RoundTripper {
	return httpclient.New(ctx, backend)
}

// sendFor sends requests for the duration d, [atOnce] of them concurrently.
func sendFor(client *http.Client, url string, d time.Duration) (summary, error) {
	var (
		mu        sync.Mutex
		durations []time.Duration
		failed    error
		open      sync.WaitGroup
	)
	begin := time.Now()
	for range atOnce {
		open.Go(func() {
			var latencies []time.Duration
			var err error
			// Each response triggers the next request, until the time is over or one fails.
			for now := begin; err == nil && now.Sub(begin) < d; {
				err = sendOnce(client, url)
				end := time.Now()
				latencies = append(latencies, end.Sub(now))
				now = end
			}
			// The results are only collected at the end, so that the senders do not wait for each other.
			mu.Lock()
			defer mu.Unlock()
			durations = append(durations, latencies...)
			failed = errors.Join(failed, err)
		})
	}
	open.Wait()
	slices.Sort(durations)
	n := len(durations)
	// Each sender has sent at least one request, so durations is not empty.
	return summary{Requests: n, Seconds: time.Since(begin).Seconds(), P99: durations[n*99/100]}, failed
}

// sendOnce sends one request and checks the response.
func sendOnce(client *http.Client, url string) error {
	rsp, err := client.Get(url) //nolint:noctx,gosec // it ends with the process; the backend
	if err != nil {
		return err
	}
	defer rsp.Body.Close()
	n, err := io.Copy(io.Discard, rsp.Body)
	if err == nil && (n != responseSize || rsp.StatusCode != http.StatusOK) {
		err = fmt.Errorf("the response has status %d and %d bytes, want 200 and %d", rsp.StatusCode, n, responseSize)
	}
	return err
}
