package balance

import (
	"fmt"
)

// PowerOfChoices picks the cheapest of k different random endpoints, from 1 to maxExamined.
func PowerOfChoices(k int) Picker {
	k = min(max(k, 1), maxExamined)
	return Picker{fmt.Sprintf("cheapest of %d", k), func(g *group) picker { return &choices{g, k} }}
}

// The tests set single fields of a [Config] by options.

func WithPolicy[Rsp any](p Policy) Option[Rsp]       { return func(o *options[Rsp]) { o.Policy = p } }
func WithRand[Rsp any](f func() uint64) Option[Rsp]  { return func(o *options[Rsp]) { o.Rand = f } }
func WithMetrics[Rsp any](i Instruments) Option[Rsp] { return func(o *options[Rsp]) { o.Metrics = i } }
func WithEvents[Rsp any](f func(Event)) Option[Rsp]  { return func(o *options[Rsp]) { o.OnEvent = f } }
func WithFailFast[Rsp any]() Option[Rsp]             { return func(o *options[Rsp]) { o.FailFast = true } }
