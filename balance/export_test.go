package balance

import (
	"fmt"
)

// PowerOfChoices picks the cheapest of k different random endpoints, from 1 to maxExamined.
func PowerOfChoices(k int) Picker {
	k = min(max(k, 1), maxExamined)
	return Picker{fmt.Sprintf("cheapest of %d", k), func(g *group) picker { return &choices{g, k} }}
}
