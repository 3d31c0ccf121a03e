package resolve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gotower/gotower/resolve"
	"github.com/gotower/gotower/resolve/resolvetest"
)

// inventory resolves names by a service that answers GET /NAME with a JSON list of addresses, and
// with 404 if it does not know the name. It asks once per interval.
type inventory struct {
	url      string
	interval time.Duration
}

func (r inventory) Resolve(ctx context.Context, target string) iter.Seq2[resolve.Update, error] {
	return func(yield func(resolve.Update, error) bool) {
		for ctx.Err() == nil {
			if !yield(r.ask(ctx, target)) {
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(r.interval):
			}
		}
	}
}

// ask returns the whole set of endpoints. An error leaves the known endpoints as they are.
func (r inventory) ask(ctx context.Context, target string) (resolve.Update, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+"/"+target, http.NoBody)
	if err != nil {
		return resolve.Update{}, fmt.Errorf("inventory: target %q: %w", target, resolve.ErrUnresolvable)
	}
	rsp, err := http.DefaultClient.Do(req)
	if err != nil {
		return resolve.Update{}, fmt.Errorf("inventory: %w", err)
	}
	defer rsp.Body.Close()
	switch rsp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return resolve.Update{Kind: resolve.DoesNotExist}, nil
	default:
		return resolve.Update{}, fmt.Errorf("inventory: target %q: %s", target, rsp.Status)
	}
	var addrs []netip.AddrPort
	if err := json.NewDecoder(rsp.Body).Decode(&addrs); err != nil {
		return resolve.Update{}, fmt.Errorf("inventory: target %q: %w", target, err)
	}
	if len(addrs) == 0 {
		return resolve.Update{Kind: resolve.Empty}, nil
	}
	update := resolve.Update{Kind: resolve.Replace}
	for _, addr := range addrs {
		update.Endpoints = append(update.Endpoints, resolve.Endpoint{ID: resolve.ID{Addr: addr}})
	}
	return update, nil
}

// A resolver of your own.
func Example_writeAResolver() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `["10.0.0.1:80", "10.0.0.2:80"]`)
	}))
	defer server.Close()
	var known resolve.Set
	for update, err := range (inventory{server.URL, time.Second}).Resolve(context.Background(), "web") {
		if err != nil {
			fmt.Println(err)
			continue
		}
		for _, e := range known.Apply(update).Added {
			fmt.Println("added", e.Addr)
		}
		break
	}
	// Output:
	// added 10.0.0.1:80
	// added 10.0.0.2:80
}

// The whole test of the resolver. The suite controls the service behind it.
func TestInventoryConforms(t *testing.T) {
	resolvetest.Run(t, resolvetest.Subject{New: func(t testing.TB) (resolve.Resolver, resolvetest.Source) {
		var mu sync.Mutex
		names := make(map[string][]netip.AddrPort)
		down := false
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			switch addrs, ok := names[r.URL.Path[1:]]; {
			case down:
				w.WriteHeader(http.StatusInternalServerError)
			case !ok:
				w.WriteHeader(http.StatusNotFound)
			default:
				_ = json.NewEncoder(w).Encode(addrs)
			}
		}))
		t.Cleanup(server.Close)
		t.Cleanup(http.DefaultClient.CloseIdleConnections)
		change := func(f func()) {
			mu.Lock()
			defer mu.Unlock()
			f()
		}
		return inventory{server.URL, 5 * time.Millisecond}, resolvetest.Source{
			Set: func(target string, endpoints ...resolve.Endpoint) {
				addrs := make([]netip.AddrPort, len(endpoints))
				for i, e := range endpoints {
					addrs[i] = e.Addr
				}
				change(func() { names[target] = addrs })
			},
			Empty:        func(target string) { change(func() { names[target] = []netip.AddrPort{} }) },
			DoesNotExist: func(target string) { change(func() { delete(names, target) }) },
			// The wait for an error of the resolver is in meanwhile, if a check needs one.
			Interrupt: func(_ string, meanwhile func()) {
				change(func() { down = true })
				meanwhile()
				change(func() { down = false })
			},
		}
	}})
}
