package sidecar_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/linkerd/linkerd2-proxy-api/go/destination"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A split is added, shared, weighted and removed while requests are sent.
func TestD1ToD4Splits(t *testing.T) {
	ctl := newScript(t)
	tn := newTestProxy(t, ctl.addr, toService)
	over := func(weights map[string]uint32) {
		p := &destination.DestinationProfile{FullyQualifiedName: "apex.example"}
		for name, weight := range weights {
			p.DstOverrides = append(p.DstOverrides, &destination.WeightedDst{Authority: name + ".example:80", Weight: weight})
		}
		ctl.profile(service, p)
	}
	over(nil)
	ends := map[string]string{"apex.example:80": backend(t, "apex"), "one.example:80": backend(t, "one"), "two.example:80": backend(t, "two")}
	done := make(chan struct{})
	answering := make(chan struct{})
	go func() {
		defer close(answering)
		for {
			select {
			case q := <-ctl.asked:
				q.add(t, endpointAt(ends[q.target])) //nolint:testifylint // it only fails where the test is broken
			case <-done:
				return
			}
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-answering
	})
	c := tn.client(t)
	backends := func(t asking) map[string]bool { // the backends of 40 responses
		all := map[string]bool{}
		for range 40 {
			status, body := get(t, c, "http://web.example/")
			require.Equal(t, http.StatusOK, status)
			name, _, _ := strings.Cut(body, " ")
			all[name] = true
		}
		return all
	}
	for name, tt := range []struct {
		weights map[string]uint32
		want    map[string]bool
	}{
		{nil, map[string]bool{"apex": true}},
		{map[string]uint32{"one": 1}, map[string]bool{"one": true}},                        // D1
		{map[string]uint32{"one": 1, "two": 1}, map[string]bool{"one": true, "two": true}}, // D2
		{map[string]uint32{"one": 1, "two": 0}, map[string]bool{"one": true}},              // D3
		{map[string]uint32{"one": 0, "two": 0}, map[string]bool{"apex": true}},             // D3
		{map[string]uint32{"two": 1}, map[string]bool{"two": true}},                        // D1
		{nil, map[string]bool{"apex": true}},                                               // D4
	} {
		over(tt.weights)
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, tt.want, backends(c)) }, soon, tick, name)
	}
}
