package grpclayer

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
)

// WithServiceConfig adds a gRPC service config, in JSON, to the config of [DialOptions]:
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
// gRPC's own retries have no budget. The number of attempts is multiplied if
// [WithCallLayer] has a Retry, too.
func WithServiceConfig(config string) Option {
	return option(func(s *settings) { s.config = config })
}

// serviceConfig returns a copy of a service config in JSON that selects another balancer.
// given is the config, and balancer is the name of the balancer. An invalid config is
// returned unchanged, because gRPC reports the error.
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
