package emojivoto

import "strings"

// Emoji is an emoji with its shortcode.
type Emoji struct {
	Shortcode string // ":rocket:"
	Unicode   string // "🚀"
}

// Doughnut is the shortcode for which every vote fails.
const Doughnut = ":doughnut:"

// Catalogue returns all emoji, in the order in which they are listed.
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

// VoteMethod returns the method of the voting service for an emoji: "VoteHotPepper" for
// ":hot_pepper:".
func VoteMethod(shortcode string) string {
	var method strings.Builder
	method.WriteString("Vote")
	for word := range strings.SplitSeq(strings.Trim(shortcode, ":"), "_") {
		if word != "" {
			method.WriteString(strings.ToUpper(word[:1]) + word[1:])
		}
	}
	return method.String()
}
