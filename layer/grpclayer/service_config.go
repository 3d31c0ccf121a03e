package grpclayer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// WithServiceConfig adds a gRPC service config, in JSON, to that of [DialOptions]:
//
//	grpclayer.WithServiceConfig(`{"methodConfig": [{
//		"name": [{"service": "shop.Books"}],
//		"retryPolicy": {
//			"maxAttempts": 3, "initialBackoff": "0.05s", "maxBackoff": "1s",
//			"backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]
//		}
//	}]}`)
//
// Our balancer replaces the one of the config. An invalid config makes [grpc.NewClient]
// fail. Only [DialOptions] uses it, and the last one applies.
//
// gRPC's retries have no budget, and multiply with a Retry of [WithCallLayer].
func WithServiceConfig(config string) Option {
	return option(func(s *settings) { s.config = config })
}

// serviceConfig returns the given service config with the named balancer. An invalid
// config is returned unchanged, because gRPC reports the error.
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
