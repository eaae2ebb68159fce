/* Generates e-mail addresses. Different records have different addresses, because the record number can be computed
 * from the address:
 *
 * The low 24 bits of the record number are mapped by a keyed permutation of 24 bits (a Feistel network with keys that
 * depend on the seed and on the high bits). The result x is in the interval of one domain, because the intervals divide
 * 0..2^24-1 according to a zipf distribution. The position y of x in its interval determines the user part, which
 * encodes y without loss in one of four forms:
 *
 *     A  name, number            maria, maria12   (decimal number; 0 is omitted)
 *     B  name, '.', syllables    maria.kato       (syllables: a bijective numeral whose digits are syllables)
 *     C  letter, '.', syllables  m.kato           (a name has more than one letter)
 *     D  number                  1234             (from 1 on)
 *
 * So domain and user part determine x, and x determines the low bits. If the high bits are not zero, '_' and a number
 * in base 36 follow; '_' occurs nowhere else. A popular domain has long user parts and a rare one has short ones, as in
 * real lists of addresses. */
#include "workload/email.h"

#include "base/random.h"

#include <stdlib.h>
#include <string.h>

#define LOW_BITS   24
#define HALF_BITS  12
#define HALF_MASK  ((1u << HALF_BITS) - 1)
#define DOMAINS    2000
#define DOMAIN_MAX 15 /* longest domain, with the '@' */
#define USER_MAX   12
#define HIGH_MAX   5 /* '_' and 20 bits in base 36 */
#define GUIDE_BITS 12

_Static_assert(DOMAIN_MAX + USER_MAX + HIGH_MAX == FAR_EMAIL_MAX, "the longest address");
_Static_assert(FAR_EMAIL_RECORDS == 1ull << (LOW_BITS + 20), "four digits in base 36 hold the high bits");

typedef struct domain {
    char text[DOMAIN_MAX];
    uint8_t len;
} domain;

struct far_email {
    uint64_t round_keys[4];
    /* for each 2^-GUIDE_BITS of the range: the domain at its start, where the search for a domain begins */
    uint16_t guide[1 << GUIDE_BITS];
    uint32_t starts[DOMAINS + 1];
    domain domains[DOMAINS];
};

/* The names of these providers cannot be confused with generated domains, which are sequences of syllables. */
static const char *const providers[] = {
    "com.gmail",   "com.yahoo",   "com.hotmail", "com.outlook", "com.aol", "com.qq",        "com.icloud",
    "com.163",     "de.gmx",      "de.web",      "net.comcast", "ru.mail", "com.msn",       "ru.yandex",
    "uk.co.yahoo", "fr.orange",   "fr.wanadoo",  "fr.free",     "net.att", "com.126",       "in.co.yahoo",
    "de.t-online", "net.verizon", "com.ymail",   "jp.co.yahoo", "com.gmx", "net.earthlink", "pl.wp",
    "nl.ziggo",    "com.mac",     "com.me",      "it.alice"};

/* Each ending occurs in this list about as often as in real lists of domains. */
static const char *const tops[] = {"com.", "com.", "com.", "com.",   "com.", "com.", "com.", "net.",
                                   "org.", "edu.", "de.",  "uk.co.", "fr.",  "it.",  "br.",  "ru.",
                                   "org.", "net.", "nl.",  "pl.",    "es.",  "ca.",  "io.",  "au."};

/* 128 common given names of two to seven letters */
static const char names[128][8] = {
    "james",   "mary",    "john",    "linda",   "robert",  "susan",   "michael", "karen",  "david",   "lisa",
    "william", "nancy",   "richard", "betty",   "joseph",  "helen",   "thomas",  "sandra", "charles", "donna",
    "daniel",  "carol",   "matthew", "ruth",    "anthony", "sharon",  "mark",    "laura",  "paul",    "sarah",
    "steven",  "anna",    "andrew",  "emma",    "kenneth", "olivia",  "joshua",  "amy",    "kevin",   "angela",
    "brian",   "ashley",  "george",  "brenda",  "edward",  "pamela",  "ronald",  "nicole", "timothy", "kathy",
    "jason",   "diana",   "jeffrey", "debra",   "ryan",    "rachel",  "jacob",   "cathy",  "gary",    "maria",
    "nick",    "heather", "eric",    "diane",   "jon",     "julie",   "stephen", "joyce",  "larry",   "vicky",
    "justin",  "kelly",   "scott",   "joan",    "brandon", "evelyn",  "ben",     "lauren", "samuel",  "judith",
    "greg",    "megan",   "frank",   "cheryl",  "alex",    "andrea",  "raymond", "hannah", "patrick", "martha",
    "jack",    "jackie",  "dennis",  "frances", "jerry",   "gloria",  "tyler",   "ann",    "aaron",   "teresa",
    "jose",    "kathryn", "henry",   "sara",    "adam",    "janice",  "douglas", "jean",   "nathan",  "alice",
    "peter",   "madison", "zachary", "doris",   "kyle",    "abigail", "walter",  "julia",  "harold",  "judy",
    "carl",    "grace",   "jeremy",  "denise",  "keith",   "amber",   "ed",      "li"};


/* Writes a number in bijective base 80: 0 is the first syllable alone, 80 the first pair of syllables. Each sequence of
 * syllables is the numeral of exactly one number. */
static size_t put_syllables(char *to, uint32_t number) {
    static const char consonants[16] = "bdfghklmnprstvwz", vowels[5] = "aeiou";
    char reversed[16];
    size_t len = 0;
    for (uint32_t rest = number + 1; rest > 0; rest = (rest - 1) / 80) {
        uint32_t digit = (rest - 1) % 80;
        reversed[len++] = vowels[digit % 5];
        reversed[len++] = consonants[digit / 5];
    }
    for (size_t i = 0; i < len; i++)
        to[i] = reversed[len - 1 - i];
    return len;
}


static size_t put_number(char *to, uint32_t number, uint32_t base) {
    char reversed[16];
    size_t len = 0;
    for (; number > 0; number /= base)
        reversed[len++] = "0123456789abcdefghijklmnopqrstuvwxyz"[number % base];
    for (size_t i = 0; i < len; i++)
        to[i] = reversed[len - 1 - i];
    return len;
}


/* Returns the numeral of domain d among the sequences of two, three or four syllables. The factors have no common
 * divisor with the numbers of such sequences (80^2, 80^3, 80^4), so two domains never get the same sequence. */
static uint32_t syllables_of_domain(uint32_t d) {
    if (d % 4 == 0)
        return 80 + d * 31 % 6400;
    if (d % 4 == 3)
        return 518480 + (uint32_t)((uint64_t)d * 2000003 % 40960000);
    return 6480 + (uint32_t)((uint64_t)d * 25601 % 512000);
}


static void make_domain(domain *to, uint32_t d) {
    char text[32];
    size_t len;
    if (d < sizeof providers / sizeof providers[0]) {
        len = strlen(providers[d]);
        memcpy(text, providers[d], len);
    } else {
        const char *top = tops[(d * 7 + d / 24) % 24];
        len = strlen(top);
        memcpy(text, top, len);
        len += put_syllables(text + len, syllables_of_domain(d));
    }
    text[len++] = '@';
    memcpy(to->text, text, len);
    to->len = (uint8_t)len;
}


far_email *far_email_new(uint64_t seed) {
    far_email *email = calloc(1, sizeof *email);
    uint64_t total = 0, sum = 0;
    if (!email)
        return NULL;
    for (int i = 0; i < 4; i++)
        email->round_keys[i] = far_splitmix(&seed);
    for (uint32_t d = 0; d < DOMAINS; d++)
        total += (1ull << 32) / (d + 1);
    for (uint32_t d = 0; d < DOMAINS; d++) {
        make_domain(&email->domains[d], d);
        email->starts[d] = (uint32_t)((sum << LOW_BITS) / total);
        sum += (1ull << 32) / (d + 1);
    }
    email->starts[DOMAINS] = 1u << LOW_BITS;
    for (uint32_t i = 0, d = 0; i < 1u << GUIDE_BITS; i++) {
        while (email->starts[d + 1] <= i << (LOW_BITS - GUIDE_BITS))
            d++;
        email->guide[i] = (uint16_t)d;
    }
    return email;
}


void far_email_free(far_email *email) {
    free(email);
}


/* Permutes the low bits of a record number by a Feistel network of four rounds. Its round keys depend on the seed and
 * on the high bits, so each value of the high bits has its own permutation. */
static uint32_t permute_low_bits(const far_email *email, uint32_t low, uint64_t high) {
    uint32_t left = low >> HALF_BITS, right = low & HALF_MASK;
    for (int i = 0; i < 4; i++) {
        uint64_t mixed = (right + high * 0xd1342543de82ef95ull + email->round_keys[i]) * 0xbf58476d1ce4e5b9ull;
        mixed = (mixed ^ (mixed >> 29)) * 0x94d049bb133111ebull;
        uint32_t next = left ^ (uint32_t)(mixed >> (64 - HALF_BITS));
        left = right;
        right = next;
    }
    return left << HALF_BITS | right;
}


static size_t put_name(char *to, uint32_t which) {
    size_t len = 2;
    memcpy(to, names[which], 8);
    while (len < 8 && to[len] != '\0')
        len++;
    return len;
}


/* Writes the user part. Of eight users, the forms A to D get 3, 3, 1 and 1; each form counts its own users from 0. */
static size_t put_user(char *to, uint32_t y) {
    uint32_t form = y % 8, group = y / 8;
    size_t len;
    if (form < 3) {
        y = group * 3 + form;
        len = put_name(to, y % 128);
        return len + put_number(to + len, y / 128, 10);
    }
    if (form < 6) {
        y = group * 3 + (form - 3);
        len = put_name(to, y % 128);
        to[len++] = '.';
        return len + put_syllables(to + len, y / 128);
    }
    if (form < 7) {
        to[0] = (char)('a' + group % 26);
        to[1] = '.';
        return 2 + put_syllables(to + 2, group / 26);
    }
    return put_number(to, group + 1, 10);
}


size_t far_email_key(const far_email *email, uint64_t record, uint8_t *key) {
    char text[FAR_EMAIL_MAX + 16]; /* larger than an address, because parts are copied with fixed sizes */
    uint64_t high = record >> LOW_BITS;
    uint32_t x = permute_low_bits(email, (uint32_t)record & ((1u << LOW_BITS) - 1), high);
    uint32_t d = email->guide[x >> (LOW_BITS - GUIDE_BITS)];
    while (email->starts[d + 1] <= x)
        d++;
    memcpy(text, email->domains[d].text, DOMAIN_MAX);
    size_t len = email->domains[d].len;
    len += put_user(text + len, x - email->starts[d]);
    if (high > 0) {
        text[len++] = '_';
        len += put_number(text + len, (uint32_t)high, 36);
    }
    memcpy(key, text, len);
    return len;
}
