package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const good = `[
{"source":"bot","destination":"web-0","method":"GET","path":"/api/vote","count":100,"best_ms":1,"worst_ms":9.5,"last_ms":2,"success_rate":0.87},
{"source":"bot","destination":"web-0","method":"GET","path":"/api/list","count":100,"best_ms":1,"worst_ms":9,"last_ms":2,"success_rate":1.0},
{"source":"web-0","destination":"voting-0","method":"POST","path":"/emojivoto.v1.VotingService/VoteDoughnut","count":13,"best_ms":1,"worst_ms":1,"last_ms":1,"success_rate":0},
{"source":"web-0","destination":"voting-0","method":"POST","path":"/emojivoto.v1.VotingService/VotePoop","count":87,"best_ms":1,"worst_ms":3,"last_ms":2,"success_rate":1},
{"source":"web-0","destination":"emoji-0","method":"POST","path":"/emojivoto.v1.EmojiService/ListAll","count":100,"best_ms":0.2,"worst_ms":3,"last_ms":2,"success_rate":1},
{"source":"web-0","destination":"emoji-1","method":"POST","path":"/emojivoto.v1.EmojiService/ListAll","count":95,"best_ms":0.2,"worst_ms":3,"last_ms":2,"success_rate":1},
{"source":"web-0","destination":"emoji-slow","method":"POST","path":"/emojivoto.v1.EmojiService/ListAll","count":5,"best_ms":200,"worst_ms":210,"last_ms":205,"success_rate":1}
]
`

func TestCheckAccepts(t *testing.T) {
	found, err := check(strings.NewReader(good))
	require.NoError(t, err)
	assert.Equal(t, "7 rows; all 13 of /VoteDoughnut failed; /api/vote succeeded 0.87; emoji-slow got 5 calls, an even share is 67", found)
}

func TestCheckRejects(t *testing.T) {
	for _, tt := range []struct{ name, before, after, err string }{
		{"text", good, "no table", "not an array of rows"},
		{"an object", good, "{}", "not an array of rows"},
		{"no rows", good, "[]", "no rows"},
		{"text after the rows", "]\n", "]\nbye\n", "something stands after"},
		{"a field too many", `{"source":"bot",`, `{"source":"bot","route":"x",`, `unknown field "route"`},
		{"a field too few", `,"success_rate":0.87`, ``, "/api/vote: best_ms, worst_ms, last_ms or success_rate is missing"},
		{"no count", `"count":13,`, ``, "VoteDoughnut: count is missing"},
		{"an empty name", `"source":"bot"`, `"source":""`, "row 0: source, destination, method or path is missing"},
		{"a rate as a percentage", `0.87`, `87`, "success rate 87 is above 1"},
		{"nothing counted", `"count":13`, `"count":0`, "count is missing, or not above 0"},
		{"a negative time", `"last_ms":205`, `"last_ms":-205`, "last_ms or success_rate is missing or negative"},
		{"worst below last", `9.5`, `1.5`, "out of order"},
		{"the doughnut succeeds", `"success_rate":0}`, `"success_rate":0.5}`, "VoteDoughnut: success rate 0.5, want 0"},
		{"no doughnut", `VoteDoughnut`, `VoteTaco`, "no row with a path that ends in /VoteDoughnut"},
		{"votes all succeed", `0.87`, `1`, "/api/vote: success rate 1 of 100"},
		{"votes all fail", `0.87`, `0`, "/api/vote: success rate 0 of 100"},
		{"no votes", `/api/vote`, `/api/other`, "no row with the path /api/vote"},
		{"something else fails", `"success_rate":1.0`, `"success_rate":0.99`, "/api/list: success rate 0.99, want 1"},
		{"the slow replica is loaded", `"count":5,`, `"count":20,`, "emoji-slow got 20 calls of 215, want less than a fifth of the even share, 14.3"},
		{"no slow replica", `emoji-slow`, `emoji-2`, "want emoji-slow and at least two others"},
		{"too few replicas", `emoji-1`, `emoji-0`, "want emoji-slow and at least two others"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			input := strings.Replace(good, tt.before, tt.after, 1)
			require.NotEqual(t, good, input)
			_, err := check(strings.NewReader(input))
			require.ErrorContains(t, err, tt.err)
		})
	}
}
