/* What may be wrong with the server that is a function (faulty_server.h). */
#ifndef LS_TESTS_DIAGNOSE_FAULTS_OF_SERVER_H
#define LS_TESTS_DIAGNOSE_FAULTS_OF_SERVER_H

typedef enum fault {
    SOUND = 0,
    NOISE,            /* of one request in five, farther than two kernels are apart */
    ORDERS,           /* the same by less */
    MASKED,           /* no end of sequence */
    RAISED,           /* all records, by about one number */
    WARM,             /* another temperature */
    TWICE_AS_WARM,    /* the one that the slope is measured at */
    LIKELIEST,        /* records are of the 20 likeliest alone */
    LIKELIER,         /* of those that are likelier as well */
    SCALED,           /* times a number */
    NEGATED,          /* without their sign */
    PIECES_MOVED,     /* what ends as the one before does is given its values, from another place */
    BLOCK_ENDS,       /* the cache does not look at the last tokens of a block */
    BOS_TWICE,        /* in front of what is generated */
    BOS_TWICE_AGAIN,  /* in front of what is scored */
    FIRST_LOST_AGAIN, /* what is scored has lost its first token */
    BF16_AGAIN,       /* values of prompts are of that type */
    NO_VALUES,        /* of draws of the first seed */
    ROWS,             /* what is generated has other rows of the embedding for odd tokens */
    OTHER_IDS,        /* it reads odd tokens as others */
    FINE,             /* values of prompts hang on the length of the whole, as float32 makes it */
    COARSE,           /* the same as bf16 makes it */
    AT_16,            /* decoded tokens behind each 16th position are off */
    AT_32,            /* behind each 32nd */
    FROM_32,          /* all decoded ones behind the 32nd */
    LONGER_32,        /* records of prompts above 32 tokens, where shorter ones are mostly equal to the bit */
    THOUSANDTHS,      /* records have three decimals */
    THREE_EARLY,      /* records stand three places early, where so many are left */
    BLOCK_SETS,       /* the cache knows a block of 16 by its tokens in any order */
    WHAT_DECODE_LEFT, /* of a hit of what was generated is wrong */
    HIT_KERNEL,       /* values behind a hit are of another kernel */
    F16_LOGITS,       /* decode rounds logits */
    PRESENCE,         /* a penalty on what was generated before */
    NARROW,           /* the same of a server in float32 */
    F16_SMALL_LOGITS, /* the same of logits that have more bits */
    PER_MILLE,        /* records are logarithms of probabilities of three decimals */
    TWO_IN_FRONT,     /* it reads the first two tokens twice */
    LAST_TWO_LOST,    /* .. all but the last two */
    TURNED_ROUND,     /* .. the last one first */
    LATE_IN_ALL,      /* records are off behind the tenth of a completion */
    ENTROPIES,        /* records are of the distribution alone */
    FIRST_ALONE,      /* first records are off */
    LAST_ALONE,       /* .. the last ones of completions */
    ODD_LENGTHS,      /* .. all of prompts of an odd number of tokens */
    MEANS_SO_FAR,     /* of the completion */
    MOST_SO_FAR,      /* .. the largest of them */
    NEIGHBOURS_PLACE, /* records of the completion are exchanged two by two */
    BACKWARDS,        /* its last record comes first */
    LAST_BITS,        /* the cache does not look at a token's last bit */
    FIRST_BITS,       /* .. at the highest one */
    ROWS_KERNEL,      /* requests at once are of another kernel */
    ROWS_FAR,         /* by more than a type makes */
    OTHER_HEAD,       /* values of prompts are of other rows of the head than the checkpoint's */
    KEY_UNWRITTEN,    /* what a hit of 16 tokens and more restores is wrong, of the same prompt as well */
    HEAD_KEY,         /* the cache knows a prompt by its length and first tokens */
    ANSWERS_KEPT,     /* .. and gives that one's answer, of whatever length */
    SCORES_KEPT,      /* the same of values of prompts */
    BORDER_ZERO,      /* a decoded token at the end of 16 is lost to those behind it */
    PADDED_BEHIND,    /* prompts are filled up to a multiple of 8, which decoded tokens see */
    FOURS_TURNED,     /* records of each four of a completion stand in the opposite order */
    NEXT_ID,          /* records are of the next id */
    SECOND_BEST,      /* .. of the second likeliest token, whichever was drawn */
    TENTH_AT_LEAST,   /* .. of the tenth likeliest at least */
    FIRST_IDS_LOST,   /* .. of the vocabulary without its first three ids */
    LOG_PLUS,         /* .. of the probability and a thousandth */
    TO_A_POWER,       /* .. to the power of 1.2 */
    ON_A_CURVE,       /* .. a function that nobody thought of */
    FIVE_PLACES,      /* .. logarithms of probabilities of five decimals */
    HIDDEN_CUT,       /* draws are of the 20 likeliest alone, and so are records, at the temperature of sampling */
    TWO_BEHIND,       /* it reads id 2 behind the prompt, and nobody says what that is */
    IN_ORDER,         /* .. the prompt's tokens in the order of their ids */
    THROUGH_TEXT,     /* .. what the prompt becomes as text and back */
    LAST_ROW,         /* the last of three rows and more has the first one's keys */
    LAST_ROW_SELDOM,  /* the same, now and then */
    ROWS_OF_SOME,     /* several rows have a kernel that some texts' values are far from */
    TO_POWERS,        /* prompts are filled up to a power of two */
    ONE_STEP,         /* a decoded step in twenty reads another token */
    PREEMPTED,        /* of more tokens at once than there is room for, the newest rows lose what they had generated */
    LONG_ROWS,        /* long prompts at once have a kernel that is wrong */
    HANDED_OVER,      /* where a slot changes hands while others run, its last owner's state stays */
    FILLED_UP,        /* rows that fill a batch up to a power of two write into its first row */
    UNLIKE,           /* of rows of unlike lengths the longest alone is right; of eight now and then one is not */
    ROW_OF_NEXT,      /* of two rows beside each other the first one's third record is of the other's distribution */
    FEW_BITS,         /* any prompt of 17 tokens and more is taken for another one, once some were kept */
    HALF_BLOCK,       /* a block of which more than half is there is taken for a full one */
    TWICE_SUMMED,     /* records are normalised over some ids twice */
    LEFT,             /* now and then what a client that left has left stays */
    MERGED,           /* it reads some pairs of tokens that meet as one */
    ONE_LEFT,         /* draws are cut to the likeliest token, whose record is 0 */
    ZEROS,            /* records are 0 now and then */
    FROM_FOUR,        /* four rows and more have a kernel whose values are far off */
    FOURTH_SLOT,      /* .. the fourth slot */
    BEHIND_FOUR,      /* .. rows behind the fourth alone */
    ROOM_OF_PADS,     /* rows that fill a batch up to a power of two take the room of as many others */
    LONG_FIRST,       /* long rows of a batch are given what the first one has */
    JOINED_IDS,       /* some pairs of a completion become one id, and records stay */
    ENDS_OFF,         /* .. it ends at some tokens, whose records are off */
    OTHER_DRAWS,      /* LATE_ROW, where copies of a text are not given the same tokens */
    SURE_LATER_OFF,   /* LATER_OFF of a model that is sure of most tokens, so that rounding moves some first ones */
    PADS_IN,          /* rows are moved by the longest beside them */
    TEXTS_IN,         /* .. by the texts of longer ones */
    ROOM_TAKEN,       /* .. by the longest, and now and then by the texts of those as long or shorter */
    DRAFTED,          /* records are another model's, by the seed */
    PIECE_KEYS,       /* the cache knows a block of 16 by its tokens and its place, whatever stands in front of it */
    EVICTED,          /* a prompt that comes back late is given what has taken its room */
    AGED,             /* .. what is wrong in the same way each time */
    LEFT_MARKS,       /* penalties and biases of a client that left stay */
    LEFT_ONCE,        /* one row of those behind clients that left has the next one's state */
    LEFT_TWICE,       /* now and then two rows behind clients that left have each other's state */
    STAYS,            /* a slot's state is never cleared */
    STAYS_AT_LENGTH,  /* .. unless its last request ended at a stop token */
    LATE_ROW,         /* of many rows each third one's second record is of the next one's distribution a step later */
    ONE_DRAW,         /* no seed is heeded, and records are of the temperature of sampling */
    REPLICAS,         /* two servers take turns; some texts have no values on one of them */
    GROWN,            /* values of prompts up to 128 tokens that grow beyond */
    KEPT_TWENTY,      /* draws are of the 20 likeliest alone, and so are records, at temperature 1 */
    RAISED_MUCH,      /* all records, by one number */
    BYTES_LOST,       /* it reads a begin of sequence in front, and one id in four as two others */
    TIES,             /* of long completions now and then a value is far off, whatever runs beside it */
    NEAR_TAIL,        /* .. of the first long ones at once, by little */
    LATER_OFF,        /* all decoded tokens are off, to either side */
    FADES,            /* the same by less with each */
    WINDOWS_64,       /* prompts above 64 tokens, by less the longer their last window of 64 is */
    ROW_BEHIND_64,    /* those whose last window has one token */
    READERS,          /* beside long prompts records of the completion's middle are those of the row before */
    DRAWN_OFF,        /* those behind a token that was not the likeliest */
    JOINED,           /* a row that another one joins while it decodes has lost its state */
    LONGEST,          /* prompts above 32 tokens have a scale that is of the longest since a short one */
    READS_AHEAD,      /* a prompt above 32 tokens reads what the one before it left, if that was as long */
    EVER_LONGEST,     /* the same of the longest ever, of all prompts */
    STEP_NOISE,       /* decoded records are drawn anew at every step */
    FEW_ROWS,         /* forwards of 8 rows and fewer have a kernel of their own */
    KEY_FLIPS,        /* now and then a value of float32 moves by what a key of few bits makes */
    FAR_FLIPS,        /* .. by more */
    UNSALTED_STALE,   /* what is kept for requests without a salt is wrong */
    ONCE_AND_KEYS     /* one value of requests alone is off, and the cache knows a prompt by its first tokens */
} fault;

#endif
