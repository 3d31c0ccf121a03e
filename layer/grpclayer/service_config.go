package grpclayer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// WithServiceConfig sets the gRPC service config, in JSON, of a client with [DialOptions]:
//
//	grpclayer.WithServiceConfig(`{"methodConfig": [{
//		"name": [{"service": "shop.Books"}],
//		"retryPolicy": {
//			"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s",
//			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
//		}
//	}]}`)
//
// This package's balancer replaces the one in config. If config is invalid, [grpc.NewClient]
// fails. Only [DialOptions] uses this option. If the option is given twice, the last one applies.
//
// gRPC's own retries are not limited by a budget. If [WithCallLayer] also contains a Retry, each
// of its attempts may cause several gRPC attempts.
func WithServiceConfig(config string) Option {
	return func(s *settings) { s.config = config }
}

// serviceConfig returns a service config for gRPC, in JSON, that selects the balancer by its name.
// The other fields are those of given, the config from [WithServiceConfig]. An invalid config is
// returned unchanged, because gRPC reports the error.
func serviceConfig(given, balancer string) string {
	fields := make(map[string]json.RawMessage)
	// An invalid config is left to gRPC, whose error names the problem.
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
