package layer_test

import (
	"errors"
	"fmt"
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
		"map_err": {Transparent: true, Layer: layer.MapErr[mapKitRequest, mapKitResponse](
			func(err error) error { return fmt.Errorf("wrapped: %w", err) })},
		// A function that tries to make an error a rejection although the request was
		// served.
		"map_err that says rejected": {Transparent: true, Layer: layer.MapErr[mapKitRequest, mapKitResponse](
			func(err error) error { return errors.Join(layer.ErrNotReady, err) })},
		"map": {NoAllocs: true, Layer: func(next layer.Service[mapKitRequest, mapKitResponse]) layer.Service[mapKitRequest, mapKitResponse] {
			return layer.Map(next,
				func(req mapKitRequest) (mapKitRequest, error) { return req, nil },
				func(rsp mapKitResponse) (mapKitResponse, error) { return rsp, nil })
		}},
	} {
		t.Run(name, func(t *testing.T) { layertest.Run(t, spec) })
	}
}
