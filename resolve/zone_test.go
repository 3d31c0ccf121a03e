package resolve

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// zones is a set from words such as "a1 a2 b1 -3": zone and host. The zone "-"
// is none.
func zones(words string) Update {
	u := Update{Kind: Replace}
	for word := range strings.FieldsSeq(words) {
		e := at("10.0.0." + word[1:] + ":8" + map[byte]string{'a': "1", 'b': "2", '-': "0"}[word[0]])
		if word[0] != '-' {
			e.Labels = map[string]string{"zone": word[:1]}
		}
		u.Endpoints = append(u.Endpoints, e)
	}
	return u
}

func TestZoneIsEnough(t *testing.T) {
	weigh := func(words string, weights ...uint32) Update {
		u := zones(words)
		for n, w := range weights {
			u.Endpoints[n].Weight = w
		}
		return u
	}
	rack := zones("a1 b1")
	rack.Endpoints[1].Labels = map[string]string{"rack": "a", "zone": "b"}
	for name, tt := range map[string]struct {
		policy ZonePolicy
		says   Update
		want   string
	}{
		"two":                   {ZonePolicy{}, zones("a1 a2 b1"), "a1 a2"},
		"one":                   {ZonePolicy{}, zones("a1 b1"), "a1 b1"},
		"none":                  {ZonePolicy{}, zones("b1 b2"), "b1 b2"},
		"one of one":            {ZonePolicy{Min: 1}, zones("a1 b1"), "a1"},
		"two of three":          {ZonePolicy{Min: 3}, zones("a1 a2 b1"), "a1 a2 b1"},
		"a min below 0":         {ZonePolicy{Min: -1}, zones("a1 b1"), "a1 b1"},
		"no label at all":       {ZonePolicy{}, zones("-1 -2 -3"), "-1 -2 -3"},
		"those without too":     {ZonePolicy{}, zones("a1 a2 -3 b4"), "a1 a2 -3"},
		"those do not count":    {ZonePolicy{}, zones("a1 -2 -3 b4"), "a1 -2 -3 b4"},
		"nor in the share":      {ZonePolicy{Share: 0.5}, zones("a1 a2 -3 b4 b5"), "a1 a2 -3"},
		"just its share":        {ZonePolicy{Share: 0.4}, zones("a1 a2 b1 b2 b3"), "a1 a2"},
		"less than its share":   {ZonePolicy{Share: 0.41}, zones("a1 a2 b1 b2 b3"), "a1 a2 b1 b2 b3"},
		"its share by weight":   {ZonePolicy{Share: 0.5}, weigh("a1 a2 b1 b2", 20_000, 0, 0, 20_000), "a1 a2"},
		"too light":             {ZonePolicy{Share: 0.5}, weigh("a1 a2 b1 b2", 9_000, 0, 10_000), "a1 a2 b1 b2"},
		"just, as floats go":    {ZonePolicy{Share: 0.07, Min: 1}, weigh("a1 b1 b2", 7, 90, 3), "a1"},
		"share below 0":         {ZonePolicy{Share: -1}, zones("a1 a2 b1"), "a1 a2"},
		"share not a number":    {ZonePolicy{Share: math.NaN()}, zones("a1 a2 b1"), "a1 a2"},
		"share of everything":   {ZonePolicy{Share: 1}, zones("a1 a2 b1"), "a1 a2 b1"},
		"all there is":          {ZonePolicy{Share: 1}, zones("a1 a2"), "a1 a2"},
		"another label":         {ZonePolicy{Label: "rack"}, zones("a1 a2 b1"), "a1 a2 b1"},
		"another label, enough": {ZonePolicy{Label: "rack", Min: 1}, zones("a1 a2 b1"), "a1 a2 b1"},
	} {
		t.Run(name, func(t *testing.T) {
			got := zoneOnce(t, tt.says, "a", tt.policy)
			var want []string
			for _, e := range zones(tt.want).Endpoints {
				want = append(want, e.Addr.String())
			}
			var addrs []string
			for _, e := range got {
				addrs = append(addrs, e.Addr.String())
			}
			assert.ElementsMatch(t, want, addrs)
		})
	}
	assert.Len(t, zoneOnce(t, zones("a1 a2 b1"), "", ZonePolicy{}), 3, "no zone: all")
	assert.Equal(t, rack.Endpoints[1:], zoneOnce(t, rack, "b", ZonePolicy{Min: 1}))
	rack.Endpoints[0].Labels = map[string]string{"rack": "b"}
	assert.Equal(t, rack.Endpoints[1:], zoneOnce(t, rack, "a", ZonePolicy{Min: 1, Label: "rack"}))
}

// zoneOnce returns what a Zone makes of one update.
func zoneOnce(t *testing.T, u Update, zone string, p ZonePolicy) []Endpoint {
	t.Helper()
	got := followed(t.Context(), Zone(saying(u), zone, p))
	require.Len(t, got.updates, 1)
	return got.set.Endpoints()
}

// TestZoneHolds goes through time: a zone of three that needs two.
func TestZoneHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := make(puppet)
		c := consume(t.Context(), Zone(source, "a", ZonePolicy{}))
		const few, enough, more = "a1 b3", "a1 a2 b3", "a1 a2 b3 b4"
		updates := 0
		check := func(words string, news int, why string) {
			t.Helper()
			now := c.look()
			updates += news
			assert.Equal(t, setOf(zones(words).Endpoints).Endpoints(), now.set.Endpoints(), why)
			assert.Len(t, now.updates, updates, why)
			assert.Zero(t, now.idle, why)
		}
		say := func(words string) { source <- message{update: zones(words)} }
		say(enough)
		check("a1 a2", 1, "the first answer is judged at once")
		say(more)
		check("a1 a2", 0, "another zone is nothing to us")
		say(few)
		check(few, 1, "too few: at once")
		for range 10 {
			say(enough)
			check(enough, 1, "enough again: not at once")
			time.Sleep(29 * time.Second)
			check(enough, 0, "not before its time")
			say(few)
			check(few, 1, "the zone's endpoint goes again")
		}
		say(enough)
		check(enough, 1, "")
		time.Sleep(20 * time.Second)
		say(more)
		check(more, 1, "all are used")
		source <- message{err: errLost}
		time.Sleep(10*time.Second - 1)
		check(more, 0, "news, and errors, do not begin it anew")
		time.Sleep(2 * time.Nanosecond)
		check("a1 a2", 1, "30 s without a break")
		assert.Equal(t, Remove, c.look().updates[updates-1].Kind, "the least that does it")
		time.Sleep(time.Hour)
		check("a1 a2", 0, "")
	})
}

// The end of Hold is an update, but no answer: that the source is back is said
// when it is.
func TestTheEndOfHoldIsNotAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := make(puppet)
		c := consume(t.Context(), Zone(source, "a", ZonePolicy{}))
		for _, words := range []string{"a1 b3", "a1 a2 b3"} {
			source <- message{update: zones(words)}
		}
		source <- message{err: errLost}
		time.Sleep(time.Minute)
		now := c.look()
		assert.Len(t, now.updates, 3)
		assert.Equal(t, 2, now.set.Len(), "Hold is over")
		for range 2 {
			source <- message{update: zones("a1 a2 b3")}
		}
		now = c.look()
		require.Len(t, now.updates, 4, "once")
		assert.Equal(t, Update{Kind: Replace, Endpoints: now.set.Endpoints()}, now.updates[3])
	})
}

func TestZoneJudgesAtOnceWhereThereIsNothingToHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := make(puppet)
		c := consume(t.Context(), Zone(source, "a", ZonePolicy{}))
		at := func(u Update) *Set {
			source <- message{update: u}
			return &c.look().set
		}
		assert.Equal(t, StatePending, at(Update{Kind: Remove}).State())
		assert.Equal(t, StateDoesNotExist, at(Update{Kind: DoesNotExist}).State())
		assert.Equal(t, 2, at(zones("a1 a2 b1")).Len())
		assert.Equal(t, 2, at(zones("a1 b1")).Len())
		assert.Equal(t, StateEmpty, at(Update{Kind: Empty}).State())
		assert.Equal(t, 2, at(zones("a1 a2 b1")).Len(), "nothing was used: nothing to hold")
	})
	synctest.Test(t, func(t *testing.T) {
		source := make(puppet)
		c := consume(t.Context(), Zone(source, "a", ZonePolicy{StabilizationWindow: -1}))
		for _, words := range []string{"a1 b1", "a1 a2 b1"} {
			source <- message{update: zones(words)}
			assert.Equal(t, 2, c.look().set.Len(), words)
		}
		assert.Len(t, c.look().updates, 2)
	})
}

func TestZoneEndsWithItsSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, final := range []message{{err: ErrUnresolvable, ended: true}, {ended: true}} {
			source := make(puppet)
			c := consume(t.Context(), Zone(source, "a", ZonePolicy{}))
			source <- message{update: zones("a1 b1")}
			source <- final
			now := c.look()
			assert.True(t, now.ended)
			assert.Equal(t, 2, now.set.Len())
			if final.err != nil {
				assert.Equal(t, []error{ErrUnresolvable}, now.errs)
			} else {
				assert.Empty(t, now.errs)
			}
		}
	})
}
