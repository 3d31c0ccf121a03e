package layer_test

import (
	"testing"

	"github.com/gotower/gotower/layer"
	"github.com/gotower/gotower/layer/layertest"
)

type (
	mapKitRequest  = *layertest.Request
	mapKitResponse = *layertest.Response
)

// The kit compares the messages with their factories, so the layers return a copy of
// the request and the same response.
func TestMapLayersConform(t *testing.T) {
	for name, spec := range map[string]layertest.Layer{
		"map_request": {NoAllocs: true, Layer: layer.MapRequest[mapKitRequest, mapKitResponse](
			func(req mapKitRequest) mapKitRequest { return req })},
		"map_request that copies": {Layer: layer.MapRequest[mapKitRequest, mapKitResponse](
			func(req mapKitRequest) mapKitRequest {
				other := *req
				other.Header = map[string]string{"changed": "yes"}
				return &other
			})},
		"map_response": {Transparent: true, Layer: layer.MapResponse[mapKitRequest](
			func(rsp mapKitResponse) mapKitResponse { return rsp })},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
