package grpclayer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// WithServiceConfig sets the gRPC service config, in JSON, of a client with
// [DialOptions]:
//
//	grpclayer.WithServiceConfig(`{"methodConfig": [{
//		"name": [{"service": "shop.Books"}],
//		"retryPolicy": {
//			"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s",
//			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
//		}
//	}]}`)
//
// The balancer of this package replaces the balancer in config. If config is invalid,
// [grpc.NewClient] fails. Only [DialOptions] uses this option. If the option is given
// twice, the last one applies.
//
// gRPC's own retries have no budget. If [WithCallLayer] also has a Retry, each attempt of
// that Retry may cause several attempts of gRPC.
func WithServiceConfig(config string) Option {
	return func(s *settings) { s.config = config }
}

// serviceConfig returns a service config for gRPC, in JSON, that selects the balancer with the name
// balancer. The other fields are those of the argument given, the config of [WithServiceConfig]. An
// invalid config is returned unchanged, because gRPC reports the error.
func serviceConfig(given, balancer string) string {
	fields := make(map[string]json.RawMessage)
	if given != "" && json.Unmarshal([]byte(given), &fields) != nil {
		return given
	}
	if fields == nil { // the config is null
		fields = make(map[string]json.RawMessage)
	}
	maps.DeleteFunc(fields, func(field string, _ json.RawMessage) bool { // gRPC ignores case, too
		return strings.EqualFold(field, "loadBalancingConfig")
	})
	fields["loadBalancingConfig"] = fmt.Appendf(nil, `[{%q:{}}]`, balancer)
	merged, err := json.Marshal(fields)
	if err != nil {
		return given
	}
	return string(merged)
}
