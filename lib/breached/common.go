package breached

import (
	"slices"
	"strings"
)

// common are passwords of 12 characters and more that people choose most, in lower case: walks over the keyboard, counting, and
// what is made of short ones that are known everywhere. Shorter ones are refused by their length.
const common = `
111111111111 000000000000 121212121212 123123123123 112233445566 123456123456 123456654321 123321123321
012345678910 123456789000 123456789012 1234567890123 12345678901234 123456789012345 1234567891011 1234567890987654321
098765432100 0987654321098 987654321000 987654321012
147258369000 147258369147 159357456852 741852963000 963852741000
qwertyuiopas qwertyuiop12 qwertyuiop123 qwertyuiop1234 qwertyuiop[] qwertyuiop[]\ qwertyuiopasdf qwertyuiopasdfghjkl qwertyuiopasdfghjklzxcvbnm
qwertyqwerty qwerty123456 qwerty1234567 qwerty12345678 qwerty123456789 123456qwerty 1234567qwerty qwerty123qwerty
qwertzuiopas qwertzuiop123 azertyuiop12 azertyuiop123 asdfghjkl123 asdfghjkl1234 asdfghjklzxcvbnm asdfasdfasdf asdfghasdfgh zxcvbnmasdfghjkl
1q2w3e4r5t6y 1q2w3e4r5t6y7u 1q2w3e4r5t6y7u8i 1q2w3e4r5t6y7u8i9o0p 1qaz2wsx3edc 1qaz2wsx3edc4rfv 1qazxsw23edc qazwsxedcrfv qazwsxedc123 zaq12wsxcde3
q1w2e3r4t5y6 q1w2e3r4t5y6u7i8 qweasdzxc123 qweasdzxcqwe 123qweasdzxc 1234qwerasdf
abcdefghijkl abcdefghijklm abcdefghijklmn abcdefghijklmnopqrstuvwxyz abcdefgh1234 abcdef123456 abcd1234abcd abcd12345678 abc123456789 abc123abc123 a1b2c3d4e5f6
passwordpassword password1234 password12345 password123456 password1234567 password12345678 password123456789 password123! password1234!
password2023 password2024 password2025 password2026 p@ssw0rd1234 p@ssword1234 passw0rd1234 p@ssw0rd123! mypassword123 password1password1
iloveyou1234 iloveyou12345 iloveyouforever iloveyousomuch iloveyouiloveyou iloveyou123456
letmein12345 letmeinplease welcome12345 welcome123456 welcomewelcome welcome1234! administrator administrator1 administrator123
admin1234567 admin12345678 admin123456789 adminadminadmin adminadmin123 rootrootroot toortoortoor changeme1234 changemeplease testtesttest test12345678 test123456789
football1234 baseball1234 basketball12 basketball123 liverpool123 manchesterunited princess1234 princess12345 sunshine1234 dragon123456 monkey123456 michael12345
superman1234 startrek1234 starwars1234 trustno11234 whatever1234 computer1234 internet1234 master123456 secret123456
correcthorsebatterystaple
`

// IsCommon says whether a password is among the few that are known here: what people choose most, in whatever case, and the
// account's own name, said again and again or with a number behind it.
func IsCommon(password, name string) bool {
	folded := strings.ToLower(password)
	return slices.Contains(strings.Fields(common), folded) || isName(folded, strings.ToLower(name))
}

// isName says whether a text is a name, once or more, and perhaps digits.
func isName(text, name string) bool {
	if name == "" {
		return false
	}
	rest, times := text, 0
	for strings.HasPrefix(rest, name) {
		rest = rest[len(name):]
		times++
	}
	return times > 0 && strings.Trim(rest, "0123456789") == ""
}
