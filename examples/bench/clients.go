package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// clientCounts is the result of the role named clients. Generations is the highest configuration
// number in any response's [generationHeader].
type clientCounts struct {
	Requests, Failed, Generations int
	First                         string // the first failed request's error, or ""
}

// sendDuringReloads is the [role] of clients that send requests while a gateway reloads. args are
// the gateway's address and number of routes. The clients share and reuse connections, and each
// sends a request every 4 ms. They use DELETE, because net/http repeats other methods when a
// connection closes after the request was written, and would hide the failure. The role's [command]
// stops the clients, waits for open requests, and returns a [clientCounts].
func sendDuringReloads(_ context.Context, args []string, ready func(string, command)) error {
	// many is the number of clients.
	const (
		many  = 16
		pause = 4 * time.Millisecond
	)
	routes, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	// Each client keeps its connection.
	transport := &http.Transport{MaxIdleConnsPerHost: many}
	var (
		mu     sync.Mutex
		counts clientCounts
		open   sync.WaitGroup
	)
	// stop is closed when the parent wants the result.
	stop := make(chan struct{})
	// ask sends one request, and counts it and the configuration that answered.
	ask := func(url string) {
		generation, err := generationOf(transport, url)
		mu.Lock()
		defer mu.Unlock()
		counts.Requests++
		counts.Generations = max(counts.Generations, generation)
		if err != nil {
			if counts.Failed++; counts.Failed == 1 {
				counts.First = err.Error()
			}
		}
	}
	for i := range many {
		open.Go(func() {
			// The ticker is not stopped, because the process ends soon.
			for tick := time.NewTicker(pause); ; {
				select {
				case <-stop:
					return
				case <-tick.C:
					// Each client uses another route, and together they use routes from all parts of the
					// configuration.
					ask("http://" + args[0] + routePath(i*routes/many) + smallPath)
				}
			}
		})
	}
	// The parent's command has no arguments, and may be called only once.
	ready("", func(string) (any, error) {
		close(stop)
		open.Wait()
		return counts, nil
	})
	// The parent kills the process.
	select {}
}

// generationOf sends one request to url, and returns the number of the gateway's configuration from
// [generationHeader]. Any status other than 200 is an error.
func generationOf(transport http.RoundTripper, url string) (int, error) {
	req, err := http.NewRequest(http.MethodDelete, url, http.NoBody) //nolint:noctx,gosec // it ends with the process; the gateway
	if err != nil {
		return 0, err
	}
	req.Host = name
	rsp, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer rsp.Body.Close()
	// The connection is only used again if the body has been read.
	if _, err := io.Copy(io.Discard, rsp.Body); err != nil {
		return 0, err
	}
	if rsp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("status %s", rsp.Status)
	}
	return strconv.Atoi(rsp.Header.Get(generationHeader))
}
