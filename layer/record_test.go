package layer_test

import (
	"errors"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gotower/gotower/layer"
)

func TestRecord(t *testing.T) {
	endpoint, client := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddr("192.0.2.1")
	failure := errors.New("failed")
	ctx, record := layer.WithRecord(t.Context())
	same, again := layer.WithRecord(layer.WithAffinity(ctx, 1))
	assert.Same(t, record, again)
	assert.Same(t, record, layer.RecordFromContext(same))

	layer.WithRoute(same, &layer.Route{Name: "books"})
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() { layer.RecordFromContext(same).AddAttempt("web", endpoint) })
	}
	wg.Wait()
	record.SetClient(client)
	record.SetErr(failure)
	assert.Equal(t, layer.Facts{
		Client: client, Route: "books", Target: "web", Endpoint: endpoint, Attempts: 10, Err: failure,
	}, record.Facts())

	none := layer.RecordFromContext(t.Context())
	none.AddAttempt("web", endpoint)
	assert.Zero(t, none.Facts())
}
