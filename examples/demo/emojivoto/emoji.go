package emojivoto

import "strings"

// Emoji is an emoji and the shortcode that identifies it.
type Emoji struct {
	Shortcode string // ":rocket:"
	Unicode   string // "🚀"
}

// Doughnut is the shortcode of the emoji for which every vote fails.
const Doughnut = ":doughnut:"

// Catalogue returns all emoji, in the order in which they are listed to clients.
func Catalogue() []Emoji {
	return []Emoji{
		{Doughnut, "🍩"},
		{":rocket:", "🚀"},
		{":taco:", "🌮"},
		{":pizza:", "🍕"},
		{":avocado:", "🥑"},
		{":unicorn:", "🦄"},
		{":ghost:", "👻"},
		{":robot:", "🤖"},
		{":crab:", "🦀"},
		{":turtle:", "🐢"},
		{":octopus:", "🐙"},
		{":rainbow:", "🌈"},
		{":cactus:", "🌵"},
		{":balloon:", "🎈"},
		{":trophy:", "🏆"},
		{":hot_pepper:", "🌶"},
	}
}

// VoteMethod names the voting service's method that counts a vote for the emoji. For
// ":hot_pepper:" it is "VoteHotPepper".
func VoteMethod(shortcode string) string {
	var method strings.Builder
	method.WriteString("Vote")
	// The words are separated by underscores.
	for word := range strings.SplitSeq(strings.Trim(shortcode, ":"), "_") {
		if word != "" {
			method.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return method.String()
}
